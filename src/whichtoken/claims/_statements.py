"""The table of statements at the top of a claim file, and samples that count failed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Claim, Row, Rows
from whichtoken.lab.samples import Sample

PointT = TypeVar("PointT")
Quantity = str | Callable[[Row[Any]], float]


@dataclass(frozen=True)
class Statement:
    """One line of the table at the top of a claim file: what is stated, and which value would refute it.

    Code and sentence are format strings; their fields are filled in where the statement is judged. A value of None is given
    there, because it depends on the rows.

    >>> from whichtoken.lab import Exact
    >>> MEAN = Equals("dice.{sides}", 3.5, "mean of a dice with {sides} sides", tolerance=0.2)
    >>> MEAN(Exact(3.6), sides=6).claim
    'mean of a dice with 6 sides'
    """

    kind: Literal["equal", "at least", "at most"]
    code: str
    value: float | None
    words: str
    tolerance: float = 0.0
    material: float | None = None
    theory_error: float = 0.0

    def __call__(
        self, measured: Sample, *, value: float | None = None, tolerance: float | None = None, **fields: Any
    ) -> Claim:
        """The claim, with what was measured; `value` and `tolerance` replace those of the table."""
        return Claim(
            self.code.format(**fields),
            self.words.format(**fields),
            self.value if value is None else value,
            measured,
            self.kind,
            self.tolerance if tolerance is None else tolerance,
            self.theory_error,
            material=self.material,
        )


AtLeast = partial(Statement, "at least")
AtMost = partial(Statement, "at most")
Equals = partial(Statement, "equal")


def rows_where(rows: Rows[PointT], holds: Callable[[PointT], bool]) -> Rows[PointT]:
    """The rows, finished and failed, whose point satisfies a condition."""
    return Rows(*([row for row in part if holds(row.point)] for part in (rows, rows.failed)))


def values_with_failures(rows: Rows[Any], quantity: Quantity, failed: float = 0.0) -> NDArray[np.float64]:
    """A quantity of every repeat, and its worst possible value for each run that failed."""
    return np.concatenate([rows.seed_means(quantity), np.full(len(rows.failed), failed)])


def hits(rows: Rows[Any], holds: str | Callable[[Row[Any]], bool]) -> list[bool]:
    """Whether something holds for each run; it does not for a run that failed."""
    of = (lambda row: row.measured[holds]) if isinstance(holds, str) else holds
    return [bool(of(row)) for row in rows] + [False] * len(rows.failed)


def compare_levels(
    rows: Rows[Any],
    field: str,
    first: Any,
    second: Any,
    quantity: Quantity,
    combine: Callable[[float, float], float] = np.subtract,
) -> NDArray[np.float64]:
    """A quantity at one value of a field against that at another, for every repeat that has both."""
    of = (lambda row: row.measured[quantity]) if isinstance(quantity, str) else quantity

    def compared(repeat: Rows[Any]) -> float | None:
        pair = [[of(row) for row in repeat.where(**{field: level})] for level in (first, second)]
        return float(combine(*map(np.mean, pair))) if all(pair) else None  # type: ignore[arg-type]

    return rows.per_seed(compared)
