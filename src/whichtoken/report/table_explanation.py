"""Explanations of the rows of a table for people: coloured values on the terminal, or one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whichtoken.display.html import text as html_text
from whichtoken.display.text import visible
from whichtoken.report.marks import explanation_page, mark, strongest, terminal_style

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators.groups.explanation import GroupReason, RowExplanation

HEADINGS = ("group", "attention", "contribution")


def summary(explanation: RowExplanation) -> str:
    """The decision in one sentence, and what would change it."""
    change = explanation.counterfactual
    if change is None:
        flip = "setting groups to their averages does not change it"
    else:
        flip = f"setting {visible(', '.join(map(str, change)))} to the average changes it, and nothing smaller does"
    return (
        f"row {explanation.row}: {visible(str(explanation.label))} (probability {explanation.probability:.3f},"
        f" decision {explanation.decision:+.3f}); {flip}"
    )


def coloured(explanation: RowExplanation) -> Text:
    """The values of the selected groups in the colour of what they speak for, the stronger the brighter."""
    from rich.text import Text

    painted, most = Text(), _strongest(explanation)
    for reason in explanation.reasons:
        for column in reason.columns:
            style = terminal_style(column.contribution, most)
            painted.append(f"{visible(column.column)} {column.value:.4g}", style).append("  ")
    return painted


def reason_lines(explanation: RowExplanation) -> list[tuple[str, ...]]:
    """The groups: name, attention, contribution; at the end what the average row has."""
    lines = [
        (
            visible(str(reason.group)),
            "" if reason.attention is None else f"{reason.attention:.3f}",
            f"{reason.contribution:+.3f}",
        )
        for reason in explanation.reasons
    ]
    return [*lines, ("average row", "", f"{explanation.bias:+.3f}")]


def as_html(explanations: Sequence[RowExplanation]) -> str:
    """A page that needs nothing else: a table for each row, values marked by contribution, their numbers on hovering."""
    return explanation_page("Which group decided", ((summary(item), _table(item)) for item in explanations))


def _table(explanation: RowExplanation) -> str:
    heads = "".join(f"<th>{name}</th>" for name in (*HEADINGS, "values"))
    marks = [*(_marked(reason, _strongest(explanation)) for reason in explanation.reasons), ""]
    rows = "".join(
        f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in line)}<td>{mark}</td></tr>"
        for line, mark in zip(reason_lines(explanation), marks, strict=True)
    )
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _marked(reason: GroupReason, most: float) -> str:
    return " ".join(
        mark(
            f"{column.column} {column.value:.4g}",
            column.contribution,
            most,
            f"{column.column}: contribution {column.contribution:+.3f}",
        )
        for column in reason.columns
    )


def _strongest(explanation: RowExplanation) -> float:
    return strongest(column.contribution for reason in explanation.reasons for column in reason.columns)
