"""Explanations of text decisions for people: coloured words on the terminal, or one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from whichtoken.display.html import text as html_text
from whichtoken.display.text import visible
from whichtoken.report.marks import explanation_page, mark, strongest, terminal_style

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators.text.explanation import Explanation, TokenReason

HEADINGS = ("token", "count", "attention", "contribution")
TOP = 8  # reasons listed below a text


def summary(explanation: Explanation) -> str:
    """The decision in one sentence, and what would change it."""
    change = explanation.counterfactual
    if change is None:
        flip = "no deletion of tokens changes it"
    else:
        flip = f"deleting {', '.join(repr(visible(token)) for token in change)} changes it, and nothing smaller does"
    label = visible(str(explanation.label))
    return f"{label} (probability {explanation.probability:.3f}, decision {explanation.decision:+.3f}); {flip}"


def coloured(explanation: Explanation) -> Text:
    """The text with every word in the colour of what it speaks for, the stronger the brighter."""
    from rich.text import Text

    painted, most = Text(), strongest(reason.contribution for reason in explanation.reasons)
    for piece, reason in _pieces(explanation):
        painted.append(visible(piece), terminal_style(reason.contribution, most) if reason else "")
    return painted


def reason_lines(explanation: Explanation) -> list[tuple[str, ...]]:
    """The strongest reasons: token, count, attention, contribution."""
    return [
        (visible(reason.token), f"{reason.count:g}", f"{reason.attention:.3f}", f"{reason.contribution:+.3f}")
        for reason in explanation.reasons[:TOP]
    ]


def as_html(explanations: Sequence[Explanation]) -> str:
    """A page that needs nothing else: words marked by contribution, their numbers on hovering."""
    return explanation_page(
        "Which token decided", ((summary(item), f"<p>{_marked(item)}</p>") for item in explanations)
    )


def _marked(explanation: Explanation) -> str:
    most = strongest(reason.contribution for reason in explanation.reasons)
    parts = []
    for piece, reason in _pieces(explanation):
        if reason is None:
            parts.append(html_text(piece))
        else:
            note = f"{reason.token}: attention {reason.attention:.3f}, contribution {reason.contribution:+.3f}"
            parts.append(mark(piece, reason.contribution, most, note))
    return "".join(parts)


def _pieces(explanation: Explanation) -> Iterator[tuple[str, TokenReason | None]]:
    """The text cut where its strongest reason changes, with that reason."""
    text = explanation.text or ""
    reasons = list(explanation.reasons)
    owner: list[int | None] = [None] * len(text)  # the strongest reason at each character
    for place in range(len(reasons) - 1, -1, -1):
        for first, last in reasons[place].places:
            owner[first:last] = [place] * (last - first)
    start = 0
    for stop in range(1, len(text) + 1):
        if stop == len(text) or owner[stop] != owner[start]:
            number = owner[start]
            yield text[start:stop], None if number is None else reasons[number]
            start = stop
