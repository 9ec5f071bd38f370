"""Explanations for people: which module shows which kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.estimators import Explanation


class Presentation(Protocol):
    """What a module of this room says about one kind of explanation."""

    @property
    def HEADINGS(self) -> tuple[str, ...]:  # noqa: N802 (a constant of the module)
        """Of the table of reasons."""
        ...

    def summary(self, explanation: Any) -> str:
        """The decision in one sentence, and what would change it."""
        ...

    def coloured(self, explanation: Any) -> Text:
        """The sample in colours, for a terminal."""
        ...

    def reason_lines(self, explanation: Any) -> list[tuple[str, ...]]:
        """The strongest reasons, one line each, under `HEADINGS`."""
        ...

    def as_html(self, explanations: Sequence[Any]) -> str:
        """A page that needs nothing else."""
        ...


def presentation_of(explanation: Explanation) -> Presentation:
    """The module that shows explanations of this kind."""
    from whichtoken.estimators.bags.explanation import BagExplanation
    from whichtoken.estimators.groups.explanation import RowExplanation
    from whichtoken.report import bag_explanation, table_explanation, text_explanation

    match explanation:
        case BagExplanation():
            return bag_explanation
        case RowExplanation():
            return table_explanation
        case _:
            return text_explanation
