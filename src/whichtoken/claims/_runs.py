"""Selections of the runs of a claim, and samples of what they measured that count the runs that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Every, Mean, Resampled, Row, Rows, Share, Worst

Array = NDArray[np.float64]
PointT = TypeVar("PointT")
Quantity = str | Callable[[Row[Any]], float]


def rows_where(rows: Rows[PointT], holds: Callable[[PointT], bool]) -> Rows[PointT]:
    """The rows, finished and failed, whose point satisfies a condition."""
    return Rows(*([row for row in part if holds(row.point)] for part in (rows, rows.failed)))


def group_by(rows: Rows[PointT], *fields: str) -> Iterator[tuple[Any, Rows[PointT]]]:
    """Runs that share the value of a field, with the value; of several fields, or of none, the values in a tuple."""
    every = (*rows, *rows.failed)
    for values in dict.fromkeys(tuple(getattr(row.point, name) for name in fields) for row in every):
        yield values[0] if len(fields) == 1 else values, rows.where(**dict(zip(fields, values, strict=True)))


def each_point(rows: Rows[PointT]) -> Iterator[tuple[PointT, Rows[PointT]]]:
    """The runs of each point, with the point; a point whose runs all failed is there too."""
    for point in dict.fromkeys(row.point for row in (*rows, *rows.failed)):
        yield point, rows.where(**vars(point))


def pairs(rows: Rows[Any], of: Quantity, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Array, Array]:
    """A quantity of two kinds of runs, in the repeats that have both: the mean over the runs of each kind.

    Parameters
    ----------
    of : name of a measured quantity, or a function of the row.
    first, second : fields of the point that tell the two kinds apart.
    """
    value = (lambda row: row.measured[of]) if isinstance(of, str) else of
    kinds: list[dict[int, list[float]]] = [{}, {}]
    for kind, fields in zip(kinds, (first, second), strict=True):
        for row in rows.where(**fields):
            kind.setdefault(row.seed, []).append(float(value(row)))
    seeds = [seed for seed in dict.fromkeys(row.seed for row in rows) if all(seed in kind for kind in kinds)]
    one, other = (np.array([np.mean(kind[seed]) for seed in seeds], dtype=np.float64) for kind in kinds)
    return one, other


def values_with_failures(rows: Rows[Any], quantity: Quantity, failed: float = 0.0) -> Array:
    """A quantity of every repeat, and its worst possible value for each run that failed."""
    return np.concatenate([rows.seed_means(quantity), np.full(len(rows.failed), failed)])


def hits(rows: Rows[Any], holds: str | Callable[[Row[Any]], bool]) -> list[bool]:
    """Whether something holds for each run; it does not for a run that failed."""
    of = (lambda row: row.measured[holds]) if isinstance(holds, str) else holds
    return [bool(of(row)) for row in rows] + [False] * len(rows.failed)


SampleT = TypeVar("SampleT", Mean, Resampled, Share, Every, Worst)


def count_failed(sample: SampleT) -> SampleT:
    """The sample, marked as one that counts the runs that failed."""
    sample.counts_failed = True
    return sample


def mean_of_runs(rows: Rows[Any], quantity: Quantity, failed: float = 0.0) -> Mean:
    """The mean of a quantity over repeats, with its worst possible value for each run that failed."""
    return count_failed(Mean(values_with_failures(rows, quantity, failed)))


def resampled_runs(
    rows: Rows[Any], quantity: Quantity, failed: float = 0.0, statistic: Callable[..., Any] = np.median
) -> Resampled:
    """The median, or another statistic, of a quantity over repeats, with its worst value for each run that failed."""
    return count_failed(Resampled(values_with_failures(rows, quantity, failed), statistic))


def worst_of_runs(rows: Rows[Any], quantity: Callable[[Row[Any]], float], failed: float) -> Worst:
    """The smallest value of any run, for claims about every run; a run that failed has the given one."""
    return count_failed(Worst(min([*map(quantity, rows), *[failed] * len(rows.failed)], default=failed)))


def share_of_runs(rows: Rows[Any], holds: str | Callable[[Row[Any]], bool]) -> Share:
    """The share of runs for which something holds; it does not for a run that failed."""
    return count_failed(Share(hits(rows, holds)))


def every_run(rows: Rows[Any], holds: str | Callable[[Row[Any]], bool]) -> Every:
    """The same for what is claimed of every run."""
    return count_failed(Every(hits(rows, holds)))
