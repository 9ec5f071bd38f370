"""Explanations on the terminal, or as one page without other files: documents, bags and rows alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whichtoken.display.decision import TOP, Decision, decision_html, legend_of
from whichtoken.display.html import asset, single_page
from whichtoken.display.text import visible

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators import Explanation

FOR, AGAINST = (30, 90, 210), (200, 95, 10)
FAINT, STRONG = 0.05, 0.3  # shares of the strongest contribution
MOST_LABELS = 30  # to filter by
MOST_ON_A_PAGE = 500  # explanations: a longer page opens slowly


def terminal_style(support: float, strongest: float) -> str:
    """The color of a contribution: brighter if it is stronger, none if it is faint."""
    share = abs(support) / strongest
    if share < FAINT:
        return ""
    red, green, blue = (int(share * part) for part in (FOR if support > 0 else AGAINST))
    return f"{'bold white ' if share > STRONG else ''}on rgb({red},{green},{blue})"


def color_words(decision: Decision) -> Text:
    """The text, instances or groups of a decision, each in the color of its contribution."""
    from rich.text import Text

    words, most = Text(), decision.strongest
    for piece in decision.pieces:
        style = terminal_style(piece.support, most) if piece.support is not None else ""
        words.append(visible(piece.text), f"{style} strike" if piece.struck else style).append(decision.separator)
    return words


def reason_lines(decision: Decision, most: int = TOP) -> list[tuple[str, ...]]:
    """The strongest reasons under `headings`, then the sums of the others and the start; the last column adds up."""
    blank = ("",) * (len(decision.headings) - 2)
    lines = [tuple(map(visible, reason.cells)) for reason in decision.reasons[:most]]
    return [*lines, *((name, *blank, f"{value:+.3f}") for name, value in decision.sums(most))]


def as_html(explanations: Sequence[Explanation | None]) -> str:
    """A page without other files: the decisions one below the other, numbered, with a filter if there are several."""
    from markupsafe import Markup

    from whichtoken.app.pages.frame import render

    decisions = [item.view(number) for number, item in enumerate(explanations[:MOST_ON_A_PAGE], 1) if item]
    several = f" in {len(decisions)} {decisions[0].kind}s" if len(decisions) > 1 else ""
    title = f"Which {decisions[0].headings[0]}s decided{several}"
    body = render(
        "explanations.html", title=title, legend=Markup(legend_of(decisions[0])), decisions=decisions,
        total=len(explanations), labels=sorted({decision.label for decision in decisions})[:MOST_LABELS],
        decision_html=lambda decision, heading: Markup(decision_html(decision, heading)),
    )  # fmt: skip
    return single_page(f"{title} · whichtoken", body, ("decision.css", "decisions.css"), asset("decisions.js"))
