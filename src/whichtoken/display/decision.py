"""A decision as people read it, whatever was judged: a document, a bag or a row of a table. Plain data, no HTML.

All numbers are turned so that what is positive speaks for the predicted label, whichever class that is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whichtoken.display.shown import Shown
from whichtoken.display.text import visible


@dataclass(frozen=True)
class Piece(Shown):
    """A part of what was judged, in the order in which it is read."""

    text: str
    support: float | None = None  # what it adds to the predicted label; None: nothing that was counted
    note: str = ""  # its numbers
    struck: bool = False  # part of the smallest change
    instead: str = ""  # what that change puts in its place


@dataclass(frozen=True)
class Reason(Shown):
    """A line of the table of reasons."""

    cells: tuple[str, ...]  # under the headings, the last one is what it adds
    support: float
    struck: bool = False


@dataclass(frozen=True)
class Change(Shown):
    """The smallest change that leads to another label; without parts, why there is none."""

    parts: tuple[str, ...]
    to: str = ""  # the label it leads to
    verb: str = "deleting"
    after: str = ""  # words after the parts
    none: str = ""

    def sentence(self, part: Callable[[str], str], label: Callable[[str], str]) -> str:
        """In words; the two functions make the texts from data safe, and show what they are."""
        if not self.parts:
            return self.none
        parts = ", ".join(map(part, self.parts))
        return f"{self.verb} {parts}{self.after} changes the label to {label(self.to)}, and nothing smaller changes it"


@dataclass(frozen=True)
class Decision(Shown):
    """A label and why it was given."""

    kind: str  # what was judged: a document, a bag, a row
    name: str  # which one
    probabilities: tuple[tuple[str, float], ...]  # label and probability, the predicted one first
    score: float  # for the predicted label: the start and what all reasons add
    start: float
    start_name: str  # what has the score of the start; empty where it is nothing
    change: Change
    pieces: tuple[Piece, ...]
    headings: tuple[str, ...]
    reasons: tuple[Reason, ...]  # the strongest first
    separator: str = ""  # between pieces

    @property
    def title(self) -> str:
        """What was judged."""
        return f"{self.kind} {visible(self.name)}"

    @property
    def label(self) -> str:
        """The predicted one."""
        return self.probabilities[0][0]

    @property
    def probability(self) -> float:
        """Of the predicted label."""
        return self.probabilities[0][1]

    @property
    def strongest(self) -> float:
        """The largest size of what a piece adds, by which colours are measured."""
        return max((abs(piece.support) for piece in self.pieces if piece.support is not None), default=0.0) or 1.0

    def verdict(self) -> str:
        """The label with its probability, and the runner-up."""
        other, share = self.probabilities[1]
        return f"{visible(self.label)} (probability {self.probability:.3f}; runner-up {visible(other)}, {share:.3f})"

    def summary(self) -> str:
        """In one sentence: what was judged, the label, and what would change it."""
        return f"{self.title}: {self.verdict()}; {self.change.sentence(_quoted, _quoted)}"


def _quoted(part: str) -> str:
    return f"'{visible(part)}'"
