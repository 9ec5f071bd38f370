"""The explanation of a document as people read it: its text with every word in the colour of what it speaks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.estimators._explanation import named_probabilities

if TYPE_CHECKING:
    from whichtoken.estimators.text.explanation import Explanation, TokenReason


def view_of(explanation: Explanation, number: int) -> Decision:
    """The words, the reasons and the smallest deletion, turned to the predicted label."""
    side, struck = explanation.side, set(explanation.counterfactual or ())
    reasons = list(explanation.reasons)
    return Decision(
        kind="document",
        name=str(number),
        probabilities=named_probabilities(explanation),
        score=side * explanation.decision,
        start=side * explanation.bias,
        start_name="no token" if explanation.bias else "",
        change=_change(explanation),
        pieces=tuple(_pieces(explanation.text, reasons, side, struck)),
        headings=("token", "count", "attention", f"adds to {explanation.label}"),
        reasons=tuple(
            Reason(
                (reason.token, f"{reason.count:g}", f"{reason.attention:.3f}", f"{side * reason.contribution:+.3f}"),
                side * reason.contribution,
                reason.token in struck,
            )
            for reason in reasons
        ),
        separator="" if explanation.text is not None else "  ",
    )


def _change(explanation: Explanation) -> Change:
    if explanation.counterfactual:
        return Change(tuple(explanation.counterfactual), str(explanation.flips_to))
    if explanation.model.selection_.shape[1] > 1:
        return Change((), none="with several queries, what would change the label is not known exactly")
    return Change((), none="no deletion of tokens changes the label")


def _pieces(text: str | None, reasons: list[TokenReason], side: int, struck: set[str]) -> Iterator[Piece]:
    """The text cut where its strongest reason changes; of counts, the tokens alone."""
    numbers = [_numbers(reason, side, struck) for reason in reasons]
    if text is None:
        yield from (Piece(reason.token, *marked) for reason, marked in zip(reasons, numbers, strict=True))
        return
    owner: list[int | None] = [None] * len(text)  # the strongest reason at each character
    for place in range(len(reasons) - 1, -1, -1):
        for first, last in reasons[place].places:
            owner[first:last] = [place] * (last - first)
    start = 0
    for stop in range(1, len(text) + 1):
        if stop == len(text) or owner[stop] != owner[start]:
            number = owner[start]
            yield Piece(text[start:stop]) if number is None else Piece(text[start:stop], *numbers[number])
            start = stop


def _numbers(reason: TokenReason, side: int, struck: set[str]) -> tuple[float, str, bool]:
    support = side * reason.contribution
    return support, f"{reason.token}: attention {reason.attention:.3f}, adds {support:+.3f}", reason.token in struck
