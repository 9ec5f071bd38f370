"""How claims are judged: criteria that stand in a table at the top of a claim file, and selections of its runs.

A criterion says what is stated, and which value would refute it. Called with what was measured it gives a check; `part` gives the
check of one point, and `pool` makes one check of many parts:

    SIGN = AtLeast("alignment.sign", 0.9, "share of runs in which the query turns towards the signal")
    COSINE = Equals("alignment.cosine", None, "cosine of query and signal", kind="paper-statement")

    yield SIGN(Share(hits(rows, "turns")), on=rows)
    yield COSINE.pool(
        COSINE.part(f"d{point.dim}", f"d = {point.dim}", runs.values("cosine"), on=runs, value=1.0, tolerance=0.01)
        for point, runs in each_point(rows)
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.lab import Check, Mean, Predicted, Row, Rows, pooled
from whichtoken.lab.samples import Sample
from whichtoken.lab.verdicts import Comparison, Kind, Regime, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # names for annotations: listing the claims does not load matplotlib
    Axes = Figure = Any

Array = NDArray[np.float64]
Checks = Iterator[Check]  # what `judge` yields
Predictions = Mapping[str, Predicted]  # what `predict` returns
PointT = TypeVar("PointT")
Quantity = str | Callable[[Row[Any]], float]


@dataclass(frozen=True)
class Criterion:
    """One line of the table at the top of a claim file: what is stated, and which value would refute it.

    Code and words are format strings; their fields are filled in where the criterion is used. A value of None is given there,
    because it depends on the rows.

    >>> MEAN = Equals("dice.{sides}", 3.5, "mean of a die with {sides} sides", tolerance=0.2)
    >>> MEAN([3.4, 3.5, 3.6], sides=6).claim
    'mean of a die with 6 sides'
    """

    comparison: Comparison
    code: str
    value: float | None
    words: str
    tolerance: float = 0.0
    material: float | None = None
    theory_error: float = 0.0
    kind: Kind = "our-law"
    regime: Regime = "unknown"

    def __call__(
        self,
        measured: Sample | ArrayLike,
        *,
        on: Rows[Any] | None = None,
        value: float | None = None,
        tolerance: float | None = None,
        theory_error: float | None = None,
        counts_failed: bool = False,
        **fields: Any,
    ) -> Check:
        """The check of what was measured; plain values, one per repeat, are averaged.

        Parameters
        ----------
        on : the rows that were measured; all rows of the claim if not given.
        value, tolerance, theory_error : replace those of the table.
        counts_failed : whether `measured` counts the runs that failed.
        **fields : of the format strings.
        """
        sample: Any = measured if hasattr(measured, "interval") else Mean(measured)
        return Check(
            self.code.format(**fields),
            self.words.format(**fields),
            self.value if value is None else value,
            sample,
            self.comparison,
            self.tolerance if tolerance is None else tolerance,
            self.theory_error if theory_error is None else theory_error,
            material=self.material,
            kind=self.kind,
            regime=self.regime,
            points=None if on is None else points_of(on),
            counts_failed=counts_failed,
        )

    def part(self, label: str, words: str, measured: Sample | ArrayLike, /, **options: Any) -> Check:
        """The check of one point of a pool; its code ends in the label, and its words say which point it is."""
        return Criterion(
            self.comparison, f"{self.code}.{label}", self.value, words, self.tolerance, self.material, self.theory_error,
            self.kind, self.regime,
        )(measured, **options)  # fmt: skip

    def pool(self, parts: Iterable[Check], **fields: Any) -> Check:
        """One check of many parts: it agrees if every part does."""
        code, words = self.code.format(**fields), self.words.format(**fields)
        return pooled(code, words, parts, kind=self.kind, regime=self.regime)


AtLeast = partial(Criterion, "at least")
AtMost = partial(Criterion, "at most")
Equals = partial(Criterion, "equal")


def pool_if_any(criterion: Criterion, parts: Iterable[Check], **fields: Any) -> Checks:
    """The parts as one check; nothing without parts, as where a run has none of the points."""
    found = tuple(parts)
    if found:
        yield criterion.pool(found, **fields)


def as_predicted(runs: Rows[Any], name: str, *, relative: float = 0.0, absolute: float = 0.0) -> dict[str, Any]:
    """Value and tolerance of a criterion from a prediction of the runs: a share of it plus an absolute difference."""
    predicted = runs.predicted(name)
    if predicted is None:
        return {"value": None, "tolerance": absolute}
    theory = float(predicted.value)
    return {"value": theory, "tolerance": relative * abs(theory) + absolute, "theory_error": predicted.error}


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
