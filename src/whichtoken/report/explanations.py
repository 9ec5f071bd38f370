"""Explanations for people, on the terminal or as one page that needs nothing else: documents, bags and rows alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whichtoken.display.decision import Decision
from whichtoken.display.decision_html import LEGEND, TOP, decision_html
from whichtoken.display.html import asset, page, text
from whichtoken.display.text import counted, visible
from whichtoken.report.marks import terminal_style

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators import Explanation

MOST_LABELS = 30  # to filter by
MOST_ON_A_PAGE = 500  # explanations: a page of more opens slowly


def coloured(decision: Decision) -> Text:
    """What was judged, every part in the colour of what it speaks for, the stronger the brighter."""
    from rich.text import Text

    painted, most = Text(), decision.strongest
    for piece in decision.pieces:
        style = terminal_style(piece.support, most) if piece.support is not None else ""
        painted.append(visible(piece.text), f"{style} strike" if piece.struck else style).append(decision.separator)
    return painted


def reason_lines(decision: Decision) -> list[tuple[str, ...]]:
    """The strongest reasons under `headings`, then what the others and the start add; the last column adds up."""
    blank = ("",) * (len(decision.headings) - 2)
    rest = decision.reasons[TOP:]
    lines = [tuple(map(visible, reason.cells)) for reason in decision.reasons[:TOP]]
    if rest:
        lines.append((counted(len(rest), "other"), *blank, f"{sum(reason.support for reason in rest):+.3f}"))
    if decision.start_name:
        lines.append((decision.start_name, *blank, f"{decision.start:+.3f}"))
    return lines


def as_html(explanations: Sequence[Explanation]) -> str:
    """A page that needs nothing else: the decisions one below the other, numbered, with a filter if there are several."""
    decisions = [item.view(number) for number, item in enumerate(explanations[:MOST_ON_A_PAGE], 1)]
    left = len(explanations) - len(decisions)
    several = len(decisions) > 1
    first = decisions[0]
    title = f"Which {first.headings[0]}s decided" + (f" in {len(decisions)} {first.kind}s" if several else "")
    body = [
        '<header class="top"><b class="brand">which<span>token</span></b>'
        '<span class="quiet">which token does attention pick, why, and how surely</span></header>',
        f"<main><h1>{text(title)}</h1>{LEGEND}",
        f"<p>These are the first {len(decisions)} of {len(explanations)}.</p>" if left else "",
        _filter(decisions) + _overview(decisions) if several else "",
        *(_article(decision, number) for number, decision in enumerate(decisions, 1)),
        "</main>",
    ]
    style = "\n".join(map(asset, ("style.css", "decision.css", "decisions.css")))
    return page(f"{title} · whichtoken", "\n".join(filter(None, body)), style, asset("decisions.js"))


def _article(decision: Decision, number: int) -> str:
    place, label = f"d{number}", text(decision.label)
    count = "" if decision.name == str(number) else f"{number}. "  # documents and rows have their numbers for names
    heading = f'<h2>{count}<a href="#{place}">{text(decision.title)}</a>: {label}</h2>'
    return f'<article class="decision" id="{place}" data-label="{label}">{decision_html(decision, heading)}</article>'


def _filter(decisions: Sequence[Decision]) -> str:
    """Shown by the script that makes it work."""
    labels = sorted({decision.label for decision in decisions})
    options = "".join(f'<option value="{text(label)}">{text(label)}</option>' for label in labels[:MOST_LABELS])
    return (
        '<form class="filters" role="search" aria-label="Filter the explanations" hidden>'
        '<label>search <input type="search" name="find"></label>'
        f'<label>label <select name="label"><option value="">all</option>{options}</select></label>'
        f'<output name="count" aria-live="polite">{len(decisions)} shown</output></form>'
    )


def _overview(decisions: Sequence[Decision]) -> str:
    """A line per decision, which leads to it."""
    lines = "".join(
        f'<tr><th scope="row"><a href="#d{number}">{text(decision.name)}</a></th><td>{text(decision.label)}</td>'
        f'<td class="number">{decision.probability:.3f}</td><td>{_change(decision)}</td></tr>'
        for number, decision in enumerate(decisions, 1)
    )
    columns = (decisions[0].kind, ""), ("label", ""), ("probability", ' class="number"'), ("smallest change", "")
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in columns)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return (
        f'<details class="overview decision" open><summary>All {len(decisions)} at a glance</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Overview">{table}</div></details>'
    )


def _change(decision: Decision) -> str:
    change = decision.change
    if not change.parts:
        return "none"
    return f"{', '.join(f'<del>{text(part)}</del>' for part in change.parts)} → {text(change.to)}"
