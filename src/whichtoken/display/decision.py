"""A decision as people read it, about a document, a bag or a row of a table. Plain data, no HTML.

All numbers have the sign with which a positive one supports the predicted label, whichever class that is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whichtoken.display.shown import Shown
from whichtoken.display.text import visible


@dataclass(frozen=True)
class Piece(Shown):
    """A part of the document, bag or row, in reading order."""

    text: str
    support: float | None = None  # what it adds to the predicted label; None: it is not counted
    note: str = ""  # its numbers
    struck: bool = False  # part of the smallest change
    instead: str = ""  # its replacement in that change


@dataclass(frozen=True)
class Reason(Shown):
    """A line of the table of reasons."""

    cells: tuple[str, ...]  # under the headings; the last one is what it adds
    support: float
    struck: bool = False


@dataclass(frozen=True)
class Change(Shown):
    """The smallest change that leads to another label; without parts, the reason why there is none."""

    parts: tuple[str, ...]
    to: str = ""  # the label it leads to
    verb: str = "deleting"
    after: str = ""  # words after the parts
    none: str = ""
    proven: bool = True  # that nothing smaller does

    def sentence(self, part: Callable[[str], str], label: Callable[[str], str]) -> str:
        """The change as a sentence; the two functions escape and mark texts from data."""
        if not self.parts:
            return self.none
        parts = ", ".join(map(part, self.parts))
        proof = "nothing smaller changes it" if self.proven else "this was confirmed, not proven smallest"
        return f"{self.verb} {parts}{self.after} changes the label to {label(self.to)}, and {proof}"


@dataclass(frozen=True)
class Decision(Shown):
    """A label and why it was given."""

    kind: str  # document, bag or row
    name: str  # which one
    probabilities: tuple[tuple[str, float], ...]  # label and probability, the predicted one first
    score: float  # for the predicted label: the start plus what all reasons add
    start: float
    start_name: str  # name of the start in the table; empty if it is 0
    change: Change
    pieces: tuple[Piece, ...]
    headings: tuple[str, ...]
    reasons: tuple[Reason, ...]  # the strongest first
    separator: str = ""  # between pieces
    note: str = ""  # what was not read

    @property
    def title(self) -> str:
        """The kind and the name."""
        return f"{self.kind} {visible(self.name)}"

    @property
    def label(self) -> str:
        """The predicted label."""
        return self.probabilities[0][0]

    @property
    def probability(self) -> float:
        """The probability of the predicted label."""
        return self.probabilities[0][1]

    @property
    def strongest(self) -> float:
        """The largest absolute support of a piece, which has the strongest color."""
        return max((abs(piece.support) for piece in self.pieces if piece.support is not None), default=0.0) or 1.0

    def verdict(self) -> str:
        """The label with its probability, and the runner-up."""
        other, share = self.probabilities[1]
        tie = "nearly a tie, " if f"{share:.3f}" == f"{self.probability:.3f}" else ""
        return (
            f"{visible(self.label)} ({tie}probability {self.probability:.3f}; runner-up {visible(other)}, {share:.3f})"
        )

    def summary(self) -> str:
        """In one sentence: the title, the label, and what would change it."""
        note = f"; {visible(self.note)}" if self.note else ""
        return f"{self.title}: {self.verdict()}; {self.change.sentence(_quote, _quote)}{note}"


def _quote(part: str) -> str:
    return f"'{visible(part)}'"
