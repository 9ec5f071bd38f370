"""Explanations of text decisions for people: coloured words on the terminal, or one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators.text_explanation import Explanation

FOR, AGAINST = (0, 130, 60), (190, 30, 45)
HEADINGS = ("token", "count", "attention", "contribution")
TOP = 8  # reasons listed below a text


def summary(explanation: Explanation) -> str:
    """The decision in one sentence, and what would change it."""
    change = explanation.counterfactual
    if change is None:
        flip = "no deletion of tokens changes it"
    else:
        flip = f"deleting {', '.join(repr(token) for token in change)} changes it, and nothing smaller does"
    return (
        f"{explanation.label} (probability {explanation.probability:.3f}, decision {explanation.decision:+.3f}); {flip}"
    )


def coloured(explanation: Explanation) -> Text:
    """The text with every word in the colour of what it speaks for, the stronger the brighter."""
    from rich.text import Text

    painted = Text(explanation.text or "")
    reasons = list(explanation.reasons)
    strongest = max((abs(reason.contribution) for reason in reasons), default=1.0) or 1.0
    for reason in reversed(reasons):  # the strongest last: it is what an overlap shows
        share = abs(reason.contribution) / strongest
        if share < 0.05:
            continue
        red, green, blue = FOR if reason.contribution > 0 else AGAINST
        style = f"on rgb({int(red * share)},{int(green * share)},{int(blue * share)})"
        for start, stop in reason.places:
            painted.stylize(f"bold white {style}" if share > 0.3 else style, start, stop)
    return painted


def reason_lines(explanation: Explanation) -> list[tuple[str, ...]]:
    """The strongest reasons: token, count, attention, contribution."""
    return [
        (reason.token, f"{reason.count:g}", f"{reason.attention:.3f}", f"{reason.contribution:+.3f}")
        for reason in explanation.reasons[:TOP]
    ]


def as_html(explanations: Sequence[Explanation]) -> str:
    """A page that needs nothing else: words marked by contribution, their numbers on hovering."""
    body = "\n".join(
        f"<section><p><b>{escape(summary(item))}</b></p><p>{_marked(item)}</p></section>" for item in explanations
    )
    style = "body{font:16px/1.6 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}mark{border-radius:3px;color:inherit}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Which token decided</title>'
        f"<style>{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def _marked(explanation: Explanation) -> str:
    text = explanation.text or ""
    reasons = list(explanation.reasons)
    strongest = max((abs(reason.contribution) for reason in reasons), default=1.0) or 1.0
    owner: list[int | None] = [None] * len(text)  # the strongest reason at each character
    for place in range(len(reasons) - 1, -1, -1):
        for first, last in reasons[place].places:
            owner[first:last] = [place] * (last - first)
    parts, start = [], 0
    for stop in range(1, len(text) + 1):
        if stop == len(text) or owner[stop] != owner[start]:
            piece, number = escape(text[start:stop]), owner[start]
            if number is None:
                parts.append(piece)
            else:
                reason = reasons[number]
                colour = ",".join(map(str, FOR if reason.contribution > 0 else AGAINST))
                alpha = abs(reason.contribution) / strongest
                note = f"{reason.token}: attention {reason.attention:.3f}, contribution {reason.contribution:+.3f}"
                parts.append(
                    f'<mark style="background:rgba({colour},{alpha:.2f})" title="{escape(note)}">{piece}</mark>'
                )
            start = stop
    return "".join(parts)
