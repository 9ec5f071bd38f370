"""A decision as HTML: bars of the probabilities, the marked words, the smallest change struck through, a table of reasons.

Blue always supports the predicted label and orange opposes it; what opposes it also has a dotted line, so that nothing
depends on color alone. The colors are translucent: they are readable on white and on black.
"""

from __future__ import annotations

from whichtoken.display.decision import Decision
from whichtoken.display.html import asset, template_engine, text
from whichtoken.display.text import pluralize

TOP = 8  # reasons that are seen at once; the others unfold
MOST_BARS = 5  # labels with a bar; the others share one
DARKEST = 0.55  # opacity of the strongest mark: its text stays readable
FAINT = 0.02  # share of the strongest below which there is no color


def decision_html(decision: Decision, heading: str = "") -> str:
    """What stands below the heading (HTML) of one decision."""
    from markupsafe import Markup

    first, rest = decision.reasons[:TOP], decision.reasons[TOP:]
    others = decision.probabilities[MOST_BARS:]
    sums = [(pluralize(len(rest), "other"), sum(reason.support for reason in rest))] if rest else []
    sums += [(decision.start_name, decision.start)] if decision.start_name else []
    sums += [("together" + (f", for {decision.label}" if decision.probabilities else ""), decision.score)]
    change = decision.change.sentence(lambda part: f"<del>{text(part)}</del>", lambda label: f"<b>{text(label)}</b>")
    template = template_engine("whichtoken.display", "assets").get_template("decision.html")
    body = template.render(
        decision=decision, strongest=decision.strongest, first=first, rest=rest, rest_count=pluralize(len(rest), "line"),
        sums=sums, change=Markup(change[:1].upper() + change[1:]),
        other_labels=(pluralize(len(others), "other"), sum(share for _, share in others)) if others else None,
        most_bars=MOST_BARS, darkest=DARKEST, faint=FAINT,
    )  # fmt: skip
    return f"{heading}\n{body}" if heading else body


def notebook_html(decision: Decision) -> str:
    """The decision as a cell of a notebook shows it."""
    title = f"<p><b>{text(decision.title)}: {text(decision.label)}</b></p>"
    style, legend = asset("decision.css"), asset("legend.html").strip()
    return f'<div class="decision"><style>{style}</style>{decision_html(decision, title)}{legend}</div>'
