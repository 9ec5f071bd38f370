"""A decision as people read it, about a document, a bag or a row of a table: plain data, and as HTML.

All numbers have the sign with which a positive one supports the predicted label, whichever class that is. In HTML, blue always
supports it and orange opposes it; what opposes it also has a dotted line, so that nothing depends on color alone. The colors
are translucent: they are readable on white and on black.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whichtoken.display.html import asset, template_engine, text
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize, visible

TOP = 8  # reasons that are seen at once; the others unfold
MOST_BARS = 5  # labels with a bar; the others share one
DARKEST = 0.55  # opacity of the strongest mark: its text stays readable
FAINT = 0.02  # share of the strongest below which there is no color


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
    does: str = ""  # what it does to a number, in place of the label

    def sentence(self, part: Callable[[str], str], label: Callable[[str], str]) -> str:
        """The change as a sentence; the two functions escape and mark texts from data."""
        if not self.parts:
            return self.none
        parts = ", ".join(map(part, self.parts))
        smaller = "nothing smaller does" if self.does else "nothing smaller changes it"
        does = self.does or f"changes the label to {label(self.to)}"
        proof = smaller if self.proven else "this was confirmed, not proven smallest"
        return f"{self.verb} {parts}{self.after} {does}, and {proof}"


@dataclass(frozen=True)
class Decision(Shown):
    """A label and why it was given."""

    kind: str  # document, bag or row
    name: str  # which one
    probabilities: tuple[tuple[str, float], ...]  # label and probability, the predicted one first; of a number, none
    score: float  # for the predicted label, or the number: the start plus what all reasons add
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
        """The predicted label, or the number."""
        return self.probabilities[0][0] if self.probabilities else f"{self.score:.4g}"

    @property
    def probability(self) -> float | None:
        """The probability of the predicted label."""
        return self.probabilities[0][1] if self.probabilities else None

    @property
    def strongest(self) -> float:
        """The largest absolute support of a piece, which has the strongest color."""
        return max((abs(piece.support) for piece in self.pieces if piece.support is not None), default=0.0) or 1.0

    def sums(self, most: int) -> list[tuple[str, float]]:
        """What the first `most` reasons lack to the score: the sum of the others, and the start."""
        rest = self.reasons[most:]
        others = [(pluralize(len(rest), "other"), sum(reason.support for reason in rest))] if rest else []
        return [*others, *([(self.start_name, self.start)] if self.start_name else [])]

    def verdict(self) -> str:
        """The label with its probability, and the runner-up; or the number."""
        if self.probability is None:
            return self.label
        other, share = self.probabilities[1]
        tie = "nearly a tie, " if f"{share:.3f}" == f"{self.probability:.3f}" else ""
        second = f"runner-up {visible(other)}, {share:.3f}"
        return f"{visible(self.label)} ({tie}probability {self.probability:.3f}; {second})"

    def summary(self) -> str:
        """In one sentence: the title, the label, and what would change it."""
        note = f"; {visible(self.note)}" if self.note else ""
        return f"{self.title}: {self.verdict()}; {self.change.sentence(_quote, _quote)}{note}"


def _quote(part: str) -> str:
    return f"'{visible(part)}'"


def decision_html(decision: Decision, heading: str = "") -> str:
    """What stands below the heading (HTML) of one decision."""
    from markupsafe import Markup

    first, rest = decision.reasons[:TOP], decision.reasons[TOP:]
    others = decision.probabilities[MOST_BARS:]
    change = decision.change.sentence(lambda part: f"<del>{text(part)}</del>", lambda label: f"<b>{text(label)}</b>")
    together = "together" + (f", for {decision.label}" if decision.probabilities else ""), decision.score
    template = template_engine("whichtoken.display", "assets").get_template("decision.html")
    body = template.render(
        decision=decision, strongest=decision.strongest, first=first, rest=rest, rest_count=pluralize(len(rest), "line"),
        sums=[*decision.sums(TOP), together], change=Markup(change[:1].upper() + change[1:]),
        other_labels=(pluralize(len(others), "other"), sum(share for _, share in others)) if others else None,
        most_bars=MOST_BARS, darkest=DARKEST, faint=FAINT,
    )  # fmt: skip
    return f"{heading}\n{body}" if heading else body


def legend_of(decision: Decision) -> str:
    """What the colors say: of a label, or of a number."""
    return asset("legend.html" if decision.probabilities else "legend_of_number.html").strip()


def notebook_html(decision: Decision) -> str:
    """The decision as a cell of a notebook shows it."""
    title = f"<p><b>{text(decision.title)}: {text(decision.label)}</b></p>"
    style, legend = asset("decision.css"), legend_of(decision)
    return f'<div class="decision"><style>{style}</style>{decision_html(decision, title)}{legend}</div>'
