"""How claims are judged: criteria that stand in a table at the top of a claim file, and selections of its runs.

A criterion says what is stated, and which value would refute it. Called with what was measured it gives a check; `part` gives the
check of one point and `each` those of all points. `pool_parts` makes one check of the parts of a criterion:

    SIGN = Above("alignment.sign", 0.9, "share of runs in which the query turns towards the signal")
    COSINE = Equals("alignment.cosine", 1.0, "cosine of query and signal", tolerance=0.01, kind="paper-statement")

    @pool_parts
    def judge(self, rows):
        yield SIGN(share_of_runs(rows, "turns"), on=rows)
        yield from COSINE.each(rows, "dim", "d{}", "d = {}", "cosine")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.lab import Check, Every, Mean, Predicted, Resampled, Row, Rows, Share, Worst, pooled
from whichtoken.lab.samples import Sample
from whichtoken.lab.verdicts import Comparison, Kind, Regime, points_of

Array = NDArray[np.float64]
Checks = Iterator[Check]  # what `judge` yields
Predictions = Mapping[str, Predicted]  # what `predict` returns
PointT = TypeVar("PointT")
Quantity = str | Callable[[Row[Any]], float]
Measure = str | Callable[[Rows[Any]], Sample | ArrayLike]  # name of a measured quantity, or a function of the runs


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
        **fields: Any,
    ) -> Check:
        """The check of what was measured; plain values, one per repeat, are averaged.

        Parameters
        ----------
        on : the rows that were measured; all rows of the claim if not given.
        value, tolerance, theory_error : replace those of the table.
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
            counts_failed=getattr(sample, "counts_failed", False),
        )

    def part(self, label: str, words: str, measured: Sample | ArrayLike, /, **options: Any) -> Part:
        """The check of one point of a pool; its code ends in the label, and its words say which point it is."""
        check = replace(self, code=f"{self.code}.{label}", words=words)(measured, **options)
        return Part(**vars(check), criterion=self, fields=options)

    def each(
        self, rows: Rows[Any], by: str, label: str, words: str, measure: Measure, *, predicted: str = "",
        relative: float = 0.0, absolute: float = 0.0, **options: Any,
    ) -> Iterator[Part]:  # fmt: skip
        """A part for each group of runs that share a field of the point, or several, separated by blanks.

        Parameters
        ----------
        label, words : format strings of the values of the fields.
        predicted, relative, absolute : the prediction that is the criterion's value, see `as_predicted`.
        """
        names = by.split()
        for values, runs in group_by(rows, *names):
            levels = (values,) if len(names) == 1 else values
            measured = runs.values(measure) if isinstance(measure, str) else measure(runs)
            expected = as_predicted(runs, predicted, relative=relative, absolute=absolute) if predicted else {}
            yield self.part(label.format(*levels), words.format(*levels), measured, on=runs, **expected, **options)

    def pool(self, parts: Iterable[Check], **fields: Any) -> Check:
        """One check of many parts: it agrees if every part does."""
        code, words = self.code.format(**fields), self.words.format(**fields)
        return pooled(code, words, parts, kind=self.kind, regime=self.regime)


AtLeast = partial(Criterion, "at least")
AtMost = partial(Criterion, "at most")
Equals = partial(Criterion, "equal")
# bounds that we chose
Above = partial(Criterion, "at least", kind="our-threshold")
Below = partial(Criterion, "at most", kind="our-threshold")


@dataclass(frozen=True)
class Part(Check):
    """The check of one point, with the criterion of its pool and the fields of its format strings."""

    criterion: Criterion = field(kw_only=True)
    fields: Mapping[str, Any] = field(kw_only=True)


Judge = Callable[[Any, Rows[Any]], Iterator[Check]]


def pool_parts(judge: Judge) -> Judge:
    """Let `judge` yield parts: those of one criterion become one check, where the first of them stands.

    Checks on no rows are left out, as in a run that has none of their points.
    """

    @wraps(judge)
    def pooled_checks(self: Any, rows: Rows[Any]) -> Iterator[Check]:
        found: dict[str, list[Check]] = {}
        for check in judge(self, rows):
            if check.points is None or check.points:
                code = check.criterion.code.format(**check.fields) if isinstance(check, Part) else check.code
                found.setdefault(code, []).append(check)
        for first, *others in found.values():
            yield first.criterion.pool([first, *others], **first.fields) if isinstance(first, Part) else first

    return pooled_checks


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


def in_every_run(rows: Rows[Any], holds: str | Callable[[Row[Any]], bool]) -> Every:
    """The same for what is claimed of every run."""
    return count_failed(Every(hits(rows, holds)))
