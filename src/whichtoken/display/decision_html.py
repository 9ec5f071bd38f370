"""A decision as HTML: bars of the probabilities, the marked words, the smallest change struck through, a table of reasons.

Blue always speaks for the predicted label and orange against it; what is against it also has a dotted line, so that nothing
depends on colour alone. The colours are translucent: they are read on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence

from whichtoken.display.decision import Decision, Piece, Reason
from whichtoken.display.html import asset, text
from whichtoken.display.text import counted

TOP = 8  # reasons that are seen at once; the others unfold
MOST_BARS = 5  # labels with a bar; the others share one
DARKEST = 0.55  # opacity of the strongest mark: its text stays readable
FAINT = 0.02  # share of the strongest below which there is no colour

LEGEND = (
    '<p class="legend decision"><mark>Blue</mark> speaks for the predicted label, <mark class="against">orange with dots</mark>'
    " against it; the stronger the colour, the more it adds. <mark><del>Struck through</del></mark>: without it, or with the"
    " average in its place, the label changes. Point at one for its numbers; the tables have the same.</p>"
)


def decision_html(decision: Decision, heading: str = "") -> str:
    """What stands below the heading of one decision."""
    parts = [heading, _bars(decision), _change(decision), f'<p class="text">{_marked(decision)}</p>', _table(decision)]
    return "\n".join(filter(None, parts))


def notebook_html(decision: Decision) -> str:
    """The decision as a cell of a notebook shows it."""
    title = f"<p><b>{text(decision.title)}: {text(decision.label)}</b></p>"
    return f'<div class="decision"><style>{asset("decision.css")}</style>{decision_html(decision, title)}{LEGEND}</div>'


def _bars(decision: Decision) -> str:
    """A line per label: the predicted one, the runner-up, the others."""
    shown, rest = decision.probabilities[:MOST_BARS], decision.probabilities[MOST_BARS:]
    lines = [_bar(name, share, _role(place)) for place, (name, share) in enumerate(shown)]
    if rest:
        lines.append(_bar(counted(len(rest), "other"), sum(share for _, share in rest), ""))
    return f'<table class="bars"><tbody>{"".join(lines)}</tbody></table>'


def _role(place: int) -> str:
    return ("predicted", "runner-up", "")[min(place, 2)]


def _bar(name: str, share: float, role: str) -> str:
    note = f" <small>({role})</small>" if role else ""
    return (
        f'<tr class="{role}"><th scope="row">{text(name)}{note}</th>'
        f'<td><span class="bar" style="width:{100 * share:.1f}%"></span></td><td class="number">{share:.3f}</td></tr>'
    )


def _change(decision: Decision) -> str:
    sentence = decision.change.sentence(lambda part: f"<del>{text(part)}</del>", lambda label: f"<b>{text(label)}</b>")
    return f'<p class="change">{sentence[:1].upper()}{sentence[1:]}.</p>'


def _marked(decision: Decision) -> str:
    most = decision.strongest
    return text(decision.separator).join(_mark(piece, most) for piece in decision.pieces)


def _mark(piece: Piece, strongest: float) -> str:
    words = text(piece.text)
    if piece.support is None:
        return words
    if piece.struck:
        words = f"<del>{words}</del>" + (f" <ins>{text(piece.instead)}</ins>" if piece.instead else "")
    share = abs(piece.support) / strongest
    against = ' class="against"' if piece.support < 0 and share >= FAINT else ""
    opacity = f"{DARKEST * share:.2f}" if share >= FAINT else "0"
    return f'<mark{against} style="--a:{opacity}" data-note="{text(piece.note)}">{words}</mark>'


def _table(decision: Decision) -> str:
    """The strongest reasons, the others folded, and what they add up to."""
    if not decision.reasons:
        return ""
    first, rest = decision.reasons[:TOP], decision.reasons[TOP:]
    sums = [(counted(len(rest), "other"), sum(reason.support for reason in rest))] if rest else []
    sums += [(decision.start_name, decision.start)] if decision.start_name else []
    sums.append((f"together, for {decision.label}", decision.score))
    foot = "".join(
        f'<tr><th scope="row" colspan="{len(decision.headings) - 1}">{text(name)}</th><td class="number">{value:+.3f}</td></tr>'
        for name, value in sums
    )
    table = f"{_head(decision)}<tbody>{_lines(first)}</tbody><tfoot>{foot}</tfoot>"
    more = (
        f"<details><summary>The other {counted(len(rest), 'line')}</summary><table>{_head(decision)}<tbody>{_lines(rest)}</tbody>"
        "</table></details>"
        if rest
        else ""
    )
    return f"<table>{table}</table>{more}"


def _head(decision: Decision) -> str:
    kinds = ["", *[' class="number"'] * (len(decision.headings) - 1)]
    cells = "".join(
        f'<th scope="col"{kind}>{text(name)}</th>' for kind, name in zip(kinds, decision.headings, strict=True)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _lines(reasons: Sequence[Reason]) -> str:
    return "".join(map(_line, reasons))


def _line(reason: Reason) -> str:
    name, *numbers = map(text, reason.cells)
    first = f"<del>{name}</del>" if reason.struck else name
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td class=number>{cell}</td>" for cell in numbers)}</tr>'
