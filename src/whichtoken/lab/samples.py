"""Samples with confidence intervals: means, shares, other statistics, exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.shown import Shown

if TYPE_CHECKING:
    from whichtoken.lab.experiment import Rows

POWER = 0.9  # probability of detecting a deviation as large as the resolution
FEWEST_SEEDS = 3
FEWEST_SEEDS_TO_RESAMPLE = 10


@dataclass(frozen=True)
class Interval(Shown):
    """A measured value with its confidence interval; None where there is too little data."""

    measured: float | None
    low: float | None
    high: float | None


NO_DATA = Interval(None, None, None)


class Sample(Protocol):
    """A sample with a confidence interval."""

    def interval(self, level: float) -> Interval: ...

    @property
    def undetected_rate(self) -> float:
        """The largest rate of failing runs that remains undetected with a probability of 10 %; infinite if unknown."""
        ...

    def error_quantile(self, level: float) -> float:
        """The 90 % quantile of the measurement error, in half-widths of the interval."""
        ...


class _NormalSample:
    """A sample whose error is approximately normal."""

    undetected_rate = 0.0
    counts_failed = False  # whether runs that failed are among its values

    def error_quantile(self, level: float) -> float:
        normal = NormalDist()
        return normal.inv_cdf(POWER) / normal.inv_cdf((1 + level) / 2)


class Mean(_NormalSample):
    """The mean over seeds, with Student's t interval.

    Parameters
    ----------
    values : array_like
        One number per seed.

    Examples
    --------
    >>> from whichtoken.lab import Mean
    >>> found = Mean([1.0, 2.0, 3.0]).interval(0.95)
    >>> found.measured, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """

    def __init__(self, values: ArrayLike) -> None:
        self.values: NDArray[np.float64] = np.asarray(values, dtype=np.float64)

    def interval(self, level: float) -> Interval:
        from scipy import stats

        n = len(self.values)
        if n == 0:
            return NO_DATA
        mean = float(self.values.mean())
        if n < FEWEST_SEEDS:
            return Interval(mean, None, None)
        half = float(stats.t.ppf((1 + level) / 2, n - 1) * self.values.std(ddof=1) / np.sqrt(n))
        return Interval(mean, mean - half, mean + half)

    def error_quantile(self, level: float) -> float:
        from scipy import stats

        freedom = max(len(self.values) - 1, 1)
        width = stats.t.ppf((1 + level) / 2, freedom)
        # both the mean and the width vary, the width by a relative 1 / sqrt(2 freedom)
        return NormalDist().inv_cdf(POWER) * math.sqrt(1 / width**2 + 1 / (2 * freedom))


class Exact(_NormalSample):
    """A deterministic number: the same for every seed.

    Parameters
    ----------
    value : float
        The number.

    Examples
    --------
    >>> from whichtoken.lab import Exact
    >>> Exact(2.0).interval(0.95)
    Interval(measured=2.0, low=2.0, high=2.0)
    """

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def interval(self, level: float) -> Interval:
        return Interval(self.value, self.value, self.value)


class Worst(Exact):
    """The largest or smallest number of several random runs, for claims about every run.

    Runs that were not made may be worse, so a verdict on it has no resolution.

    Parameters
    ----------
    value : float
        The number of the worst run.

    Examples
    --------
    >>> from whichtoken.lab import Worst, at_least
    >>> verdict = at_least("cosine", "near in every run", bound=0.9, measured=Worst(min([0.97, 0.95]))).settle(0.95)
    >>> verdict.state, verdict.resolution
    ('agrees', None)
    """

    undetected_rate = math.inf


class Share(_NormalSample):
    """The fraction of seeds for which something holds, with Clopper and Pearson's exact interval.

    Student's t would give width zero, hence certainty, to five hits out of five.

    Parameters
    ----------
    hits : array_like of bool
        One per seed.

    Examples
    --------
    >>> from whichtoken.lab import Share
    >>> found = Share([True] * 5).interval(0.95)
    >>> found.measured, round(found.low, 3), found.high
    (1.0, 0.478, 1.0)
    """

    def __init__(self, hits: ArrayLike) -> None:
        self.hits: NDArray[np.bool_] = np.asarray(hits, dtype=bool)

    def interval(self, level: float) -> Interval:
        from scipy import stats

        n = len(self.hits)
        if n == 0:
            return NO_DATA
        share = float(self.hits.mean())
        if n < FEWEST_SEEDS:
            return Interval(share, None, None)
        bounds = stats.binomtest(int(self.hits.sum()), n).proportion_ci(level, method="exact")
        return Interval(share, float(bounds.low), float(bounds.high))


class Every(Share):
    """The share of random runs in which something holds that is claimed of every run: a single exception refutes it.

    Parameters
    ----------
    hits : array_like of bool
        One per run.

    Examples
    --------
    >>> from whichtoken.lab import Every, at_least
    >>> verdict = at_least("all", "holds in every run", bound=1.0, measured=Every([True] * 40)).settle(0.95)
    >>> verdict.state, round(verdict.resolution, 3)  # a smaller rate of failing runs could remain undetected
    ('agrees', 0.056)
    """

    @property
    def undetected_rate(self) -> float:  # type: ignore[override]
        return float(1.0 - (1.0 - POWER) ** (1.0 / max(len(self.hits), 1)))

    def interval(self, level: float) -> Interval:
        if not len(self.hits):
            return NO_DATA
        share = float(self.hits.mean())
        return Interval(share, share, share)


class Resampled(_NormalSample):
    """Any statistic of the seeds (a median, a ratio of means), with a bootstrap interval from ten seeds on.

    Parameters
    ----------
    values : array_like
        One number per seed.
    statistic : Callable[..., Any]
        Function of the numbers, such as `numpy.median`.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.lab import Resampled
    >>> found = Resampled(np.arange(1.0, 12.0), np.median).interval(0.95)
    >>> found.measured, found.low < 6 < found.high
    (6.0, True)
    """

    def __init__(self, values: ArrayLike, statistic: Callable[..., Any]) -> None:
        self.values: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
        self.statistic = statistic

    def interval(self, level: float) -> Interval:
        from scipy import stats

        if len(self.values) == 0:
            return NO_DATA
        measured = float(self.statistic(self.values))
        if len(self.values) < FEWEST_SEEDS_TO_RESAMPLE:
            return Interval(measured, None, None)
        bounds = stats.bootstrap(
            (self.values,), self.statistic, confidence_level=level, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        return Interval(measured, float(bounds.low), float(bounds.high))


def log_slope(rows: Rows[Any], x: str, y: str) -> Mean:
    """Exponent of `y` as a power of the field `x`: a least-squares slope in logarithms for each seed, then their mean.

    Parameters
    ----------
    rows : Rows[Any]
        Rows of several values of `x`.
    x : str
        A field of the point.
    y : str
        A measured quantity.

    Returns
    -------
    Mean
        One exponent per seed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from whichtoken.lab import Row, Rows, log_slope
    >>> rows = Rows(Row(SimpleNamespace(dim=dim), seed, "ok", "", {"error": dim**-0.5}, 0.1, "0.1.0")
    ...             for dim in (4, 16, 64) for seed in range(3))
    >>> log_slope(rows, "dim", "error").values.round(6).tolist()
    [-0.5, -0.5, -0.5]
    """

    def slope(repeat: Rows[Any]) -> float | None:
        horizontal = np.array([getattr(row.point, x) for row in repeat], dtype=np.float64)
        if len(np.unique(horizontal)) < 2:
            return None
        return float(np.polyfit(np.log(horizontal), np.log(repeat.values(y)), 1)[0])

    return Mean(rows.per_seed(slope))
