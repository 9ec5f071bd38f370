"""The explanation of a row as people read it: its values in the colour of what they speak for, beside the averages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.estimators._explanation import named_probabilities

if TYPE_CHECKING:
    from whichtoken.estimators.groups.explanation import RowExplanation


def view_of(explanation: RowExplanation) -> Decision:
    """The values, the groups and the fewest of them that would change the label, turned to the predicted label."""
    side, struck = explanation.side, set(explanation.counterfactual or ())
    return Decision(
        kind="row",
        name=str(explanation.row),
        probabilities=named_probabilities(explanation),
        score=side * explanation.decision,
        start=side * explanation.bias,
        start_name="average row",
        change=_change(explanation),
        pieces=tuple(_pieces(explanation, side, struck)),
        headings=("group", "attention", f"adds to {explanation.label}"),
        reasons=tuple(
            Reason(
                (
                    str(reason.group),
                    "" if reason.attention is None else f"{reason.attention:.3f}",
                    f"{side * reason.contribution:+.3f}",
                ),
                side * reason.contribution,
                reason.group in struck,
            )
            for reason in explanation.reasons
        ),
        separator="  ",
    )


def _change(explanation: RowExplanation) -> Change:
    if not explanation.counterfactual:
        return Change((), none="setting groups to their averages does not change the label")
    parts = tuple(map(str, explanation.counterfactual))
    return Change(parts, str(explanation.flips_to), "setting", " to the average")


def _pieces(explanation: RowExplanation, side: int, struck: set[object]) -> Iterator[Piece]:
    for reason in explanation.reasons:
        for column in reason.columns:
            support = side * column.contribution
            note = f"{column.column}: {column.value:.4g}, on average {column.average:.4g}; adds {support:+.3f}"
            words = f"{column.column} {column.value:.4g}"
            yield Piece(words, support, note, reason.group in struck, f"{column.average:.4g}")
