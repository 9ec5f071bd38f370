"""From measurements to verdicts.

An experiment's `judge` yields claims: a statement, what theory says and what was measured. `settle` turns all claims of
one experiment into verdicts at once, because the intervals of one experiment share their 95 % (Sidak's correction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
FEWEST_SEEDS = 3
FEWEST_SEEDS_TO_RESAMPLE = 10

RELATIONS: dict[str, Literal["=", "≤", "≥", ""]] = {"equal": "=", "at least": "≥", "at most": "≤", "not run": ""}
State = Literal["agrees", "disagrees", "inconclusive", "not-run"]


@dataclass(frozen=True)
class Interval:
    """What was measured, and between which bounds it lies; None where nothing can be said."""

    measured: float | None
    low: float | None
    high: float | None


NOTHING = Interval(None, None, None)


class Sample(Protocol):
    """Measurements that know how surely they speak."""

    def interval(self, level: float) -> Interval: ...


class Mean:
    """The mean over seeds, with Student's t interval."""

    def __init__(self, values: ArrayLike) -> None:
        self.values: NDArray[np.float64] = np.asarray(values, dtype=np.float64)

    def interval(self, level: float) -> Interval:
        from scipy import stats

        n = len(self.values)
        if n == 0:
            return NOTHING
        mean = float(self.values.mean())
        if n < FEWEST_SEEDS:
            return Interval(mean, None, None)
        half = float(stats.t.ppf((1 + level) / 2, n - 1) * self.values.std(ddof=1) / np.sqrt(n))
        return Interval(mean, mean - half, mean + half)


class Exact:
    """A number that no seed changes."""

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def interval(self, level: float) -> Interval:
        return Interval(self.value, self.value, self.value)


class Share:
    """The fraction of seeds for which something holds, with Clopper and Pearson's exact interval.

    Student's t would give width zero, hence certainty, to five hits out of five.
    """

    def __init__(self, hits: ArrayLike) -> None:
        self.hits: NDArray[np.bool_] = np.asarray(hits, dtype=bool)

    def interval(self, level: float) -> Interval:
        from scipy import stats

        n = len(self.hits)
        if n == 0:
            return NOTHING
        share = float(self.hits.mean())
        if n < FEWEST_SEEDS:
            return Interval(share, None, None)
        bounds = stats.binomtest(int(self.hits.sum()), n).proportion_ci(level, method="exact")
        return Interval(share, float(bounds.low), float(bounds.high))


class Resampled:
    """Any statistic of the seeds (a median, a ratio of means), with a bootstrap interval from ten seeds on."""

    def __init__(self, values: ArrayLike, statistic: Callable[..., Any]) -> None:
        self.values: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
        self.statistic = statistic

    def interval(self, level: float) -> Interval:
        from scipy import stats

        if len(self.values) == 0:
            return NOTHING
        measured = float(self.statistic(self.values))
        if len(self.values) < FEWEST_SEEDS_TO_RESAMPLE:
            return Interval(measured, None, None)
        bounds = stats.bootstrap(
            (self.values,), self.statistic, confidence_level=level, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        return Interval(measured, float(bounds.low), float(bounds.high))


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    code: str
    claim: str
    theory: float | None
    theory_error: float
    measured: float | None
    low: float | None
    high: float | None
    relation: Literal["=", "≤", "≥", ""]  # of the measurement to theory, if the claim holds
    rule: str
    state: State
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement with its evidence, before the level of its interval is known."""

    code: str
    claim: str
    theory: float | None
    sample: Sample
    kind: Literal["equal", "at least", "at most", "not run"]
    tolerance: float = 0.0
    theory_error: float = 0.0
    note: str = ""

    def settle(self, level: float) -> Verdict:
        found = self.sample.interval(level)
        return Verdict(
            self.code, self.claim, self.theory, self.theory_error, found.measured, found.low, found.high,
            RELATIONS[self.kind], self._rule(level), self._state(found), self.note,
        )  # fmt: skip

    def _state(self, found: Interval) -> State:
        if self.kind == "not run":
            return "not-run"
        if self.theory is None or found.measured is None or found.low is None or found.high is None:
            return "inconclusive"
        inside, outside = self._inside_and_outside(self.theory, found.measured, found.low, found.high)
        return "agrees" if inside else "disagrees" if outside else "inconclusive"

    def _inside_and_outside(self, theory: float, measured: float, low: float, high: float) -> tuple[bool, bool]:
        if self.kind == "at least":
            return low >= theory - self.theory_error, high < theory - self.theory_error
        if self.kind == "at most":
            return high <= theory + self.theory_error, low > theory + self.theory_error
        reach = self.tolerance + self.theory_error
        near = abs(measured - theory) <= reach and (high - low) / 2 <= self.tolerance
        return near, low > theory + reach or high < theory - reach

    def _rule(self, level: float) -> str:
        interval = f"its {100 * level:.1f} % interval"
        if self.kind == "not run":
            return "needs data that is not here"
        if self.kind == "equal":
            error = f" + {self.theory_error:.1g}" if self.theory_error else ""
            return f"within {self.tolerance:.3g}{error} of theory, {interval} no wider"
        return f"{self.kind} the bound, {interval} wholly"


def agreement(
    code: str, claim: str, *, theory: float | None, measured: Sample, tolerance: float, theory_error: float = 0.0
) -> Claim:
    """The claim that a measured quantity equals its prediction."""
    return Claim(code, claim, theory, measured, "equal", tolerance, theory_error)


def at_least(code: str, claim: str, *, bound: float, measured: Sample) -> Claim:
    """The claim that a measured quantity does not fall below a bound."""
    return Claim(code, claim, bound, measured, "at least")


def at_most(code: str, claim: str, *, bound: float, measured: Sample) -> Claim:
    """The claim that a measured quantity does not exceed a bound."""
    return Claim(code, claim, bound, measured, "at most")


def not_run(code: str, claim: str, reason: str) -> Claim:
    """A claim whose data is absent."""
    return Claim(code, claim, None, Mean([]), "not run", note=reason)


def settle(claims: Sequence[Claim]) -> list[Verdict]:
    """Verdicts of one experiment: all their intervals hold together with probability 95 %."""
    judged = sum(claim.kind != "not run" for claim in claims)
    level = CONFIDENCE ** (1 / max(judged, 1))
    return [claim.settle(level) for claim in claims]
