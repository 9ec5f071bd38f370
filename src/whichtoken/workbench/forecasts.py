"""The numbers of a study, checked, and the forecasts that were made so far; `planning` computes them in another process."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError

if TYPE_CHECKING:
    from whichtoken.theory.sparse_tokens import Task

LIMITS = {  # least, most and default of each number; the sliders go from the first to the second
    "length": (2, 1000, 10), "signal_tokens": (1, 100, 1), "strength": (0.1, 12.0, 5.0), "prevalence": (0.01, 0.99, 0.5),
    "dim": (10, 5000, 500), "samples": (20, 100_000, 2000), "target_error": (0.001, 0.5, None),
}  # fmt: skip
WHOLE = {"length", "signal_tokens", "dim", "samples"}
MOST_EXACT, MOST_QUICK = 200, 4096  # forecasts that are kept
Designs = tuple[tuple[Any, ...], tuple[Any, ...]]  # fields of the `Design` and of the `SharedDesign` of a plan
USUAL: Designs = (0.45, 1.0, True, math.nan), (1.0, True, math.nan)  # before any plan was made


@dataclass(frozen=True)
class StudyNumbers:
    """The numbers of the sliders."""

    length: int
    signal_tokens: int
    strength: float
    prevalence: float
    dim: int
    samples: int
    target_error: float | None = None

    @classmethod
    def read(cls, given: Any) -> StudyNumbers:
        """Numbers from an address; what is not given is as by default."""
        numbers = cls(**{name: _number(name, given.get(name)) for name in LIMITS})
        if numbers.signal_tokens >= numbers.length:
            raise UsageError(f"signal tokens {numbers.signal_tokens} must be fewer than length {numbers.length}")
        return numbers

    @property
    def task(self) -> Task:
        from whichtoken.theory.sparse_tokens import Task

        return Task(self.length, self.signal_tokens, self.strength, self.prevalence)

    def distance(self, other: StudyNumbers) -> float:
        """How different two studies are, in the logarithms that the sliders move in."""
        names = ("length", "signal_tokens", "strength", "prevalence")
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        pairs.append((self.samples / self.dim, other.samples / other.dim))
        return sum(abs(math.log(one / two)) for one, two in pairs)


def _number(name: str, text: str | None) -> Any:
    least, most, default = LIMITS[name]
    if text is None or not text.strip():
        return default
    try:
        value = int(text) if name in WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise UsageError(f"{name.replace('_', ' ')} '{text[:40]}' is not {kind}") from None
    if not least <= value <= most:
        raise UsageError(
            f"{name.replace('_', ' ')} {text.strip()[:40]} is out of range; give a number from {least:g} to {most:g}"
        )
    return value


class Forecasts:
    """What was forecast so far; the designs of exact plans serve their neighborhood."""

    def __init__(self) -> None:
        self.exact: OrderedDict[StudyNumbers, dict[str, Any]] = OrderedDict()
        self.quick: OrderedDict[StudyNumbers, dict[str, Any]] = OrderedDict()
        self._designs: dict[StudyNumbers, Designs] = {}

    def put_exact(self, numbers: StudyNumbers, found: dict[str, Any], designs: Designs) -> None:
        self.exact[numbers], self._designs[numbers] = found, designs
        self.quick.clear()  # what is near can now be told better
        if len(self.exact) > MOST_EXACT:
            del self._designs[self.exact.popitem(last=False)[0]]

    def put_quick(self, numbers: StudyNumbers, found: dict[str, Any]) -> None:
        self.quick[numbers] = found
        if len(self.quick) > MOST_QUICK:
            self.quick.popitem(last=False)

    def nearest(self, numbers: StudyNumbers) -> Designs:
        """The designs of the plan that is most like this study."""
        if not self._designs:
            return USUAL
        return self._designs[min(self._designs, key=numbers.distance)]
