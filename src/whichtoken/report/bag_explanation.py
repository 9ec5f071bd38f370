"""Explanations of bags for people: coloured instances on the terminal, or one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whichtoken.display.html import text as html_text
from whichtoken.display.text import visible
from whichtoken.report.marks import explanation_page, mark, strongest, terminal_style
from whichtoken.report.text_explanation import TOP

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators.bags.explanation import BagExplanation, InstanceReason

HEADINGS = ("instance", "attention", "over uniform", "contribution")


def summary(explanation: BagExplanation) -> str:
    """The decision in one sentence, and what would change it."""
    change = explanation.counterfactual
    if not explanation.certified:
        flip = "deletions are certified for one query and two classes only"
    elif change is None:
        flip = "no deletion of instances changes it"
    else:
        names = ("instance " if len(change) == 1 else "instances ") + ", ".join(map(str, change))
        flip = f"deleting {names} changes it, and nothing smaller does"
    return (
        f"bag {visible(str(explanation.bag))}: {visible(str(explanation.label))} (probability {explanation.probability:.3f},"
        f" decision {explanation.decision:+.3f}); {flip}"
    )


def coloured(explanation: BagExplanation) -> Text:
    """The instances in their order, in the colour of what they speak for, the stronger the brighter."""
    from rich.text import Text

    painted = Text()
    most = strongest(reason.contribution for reason in explanation.reasons)
    for reason in _in_order(explanation):
        painted.append(f" {reason.instance} ", terminal_style(reason.contribution, most))
    return painted


def reason_lines(explanation: BagExplanation) -> list[tuple[str, ...]]:
    """The strongest instances and what all others add together; contributions sum to the decision."""
    top, others = explanation.reasons[:TOP], explanation.reasons[TOP:]
    lines: list[tuple[str, ...]] = [
        (str(reason.instance), f"{reason.attention:.3f}", f"{reason.over_uniform:.2f}", f"{reason.contribution:+.3f}")
        for reason in top
    ]
    if others:
        attention = sum(reason.attention for reason in others)
        mean = sum(reason.over_uniform for reason in others) / len(others)
        added = sum(reason.contribution for reason in others)
        lines.append((f"{len(others)} others", f"{attention:.3f}", f"{mean:.2f}", f"{added:+.3f}"))
    return lines


def as_html(explanations: Sequence[BagExplanation]) -> str:
    """A page that needs nothing else: the instances marked by contribution, with their numbers on hovering, and a table."""
    sections = ((summary(item), f"<p>{_marked(item)}</p>{_table(item)}") for item in explanations)
    return explanation_page("Which instance decided", sections)


def _table(explanation: BagExplanation) -> str:
    lines = [f"<td>{'</td><td>'.join(map(html_text, line))}</td>" for line in reason_lines(explanation)]
    return f"<table><tr><th>{'</th><th>'.join(HEADINGS)}</th></tr><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def _marked(explanation: BagExplanation) -> str:
    most = strongest(reason.contribution for reason in explanation.reasons)
    parts = []
    for reason in _in_order(explanation):
        note = (
            f"instance {reason.instance}: attention {reason.attention:.3f} ({reason.over_uniform:.2f} of uniform),"
            f" contribution {reason.contribution:+.3f}"
        )
        parts.append(mark(str(reason.instance), reason.contribution, most, note))
    return " ".join(parts)


def _in_order(explanation: BagExplanation) -> list[InstanceReason]:
    return sorted(explanation.reasons, key=lambda reason: reason.instance)
