"""How claims are judged: tables of checks, what would refute a check, groups of runs and pairs of runs.

A check is a code, a sentence, a rule and the values that were measured. `above`, `below`, `near` and `as_predicted` are the
rules; `check` joins the four, and `checks` is a table of several at one place and size:

    yield from checks(
        "overlap",
        ("routing", "accuracy, at most 0.75 by selection alone", above(0.75), runs.values("accuracy")),
        ("value-moves", "|v_2| over |v_1|", above(0.5), ratios),
        where="two groups, two directions",
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.lab import Claim, Mean, Predicted, Row, Rows
from whichtoken.lab.samples import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # names for annotations: listing the claims does not load matplotlib
    Axes = Figure = Any

Array = NDArray[np.float64]
Checks = Iterator[Claim]  # what `judge` yields
Predictions = Mapping[str, Predicted]  # what `predict` returns
PointT = TypeVar("PointT")
Rule = Mapping[str, Any]  # the fields of a `Claim` that say what would refute it
Entry = tuple[str, str, Rule, Sample | ArrayLike]  # of a table of checks: code, sentence, rule and what was measured


def above(bound: float, theory_error: float = 0.0) -> Rule:
    """The measurement does not fall below the bound."""
    return {"kind": "at least", "theory": bound, "theory_error": theory_error}


def below(bound: float, theory_error: float = 0.0) -> Rule:
    """The measurement does not exceed the bound."""
    return {"kind": "at most", "theory": bound, "theory_error": theory_error}


def near(theory: float | None, within: float, theory_error: float = 0.0, material: float | None = None) -> Rule:
    """The measurement lies within a tolerance of the prediction; None where there is none."""
    return {
        "kind": "equal",
        "theory": theory,
        "tolerance": within,
        "theory_error": theory_error,
        "material": material,
    }


def as_predicted(runs: Rows[Any], name: str, *, relative: float = 0.0, absolute: float = 0.0) -> Rule:
    """The measurement equals a prediction of the runs, up to a share of it plus an absolute difference."""
    predicted = runs.predicted(name)
    if predicted is None:
        return near(None, absolute)
    theory = float(predicted.value)
    return near(theory, relative * abs(theory) + absolute, predicted.error)


def check(code: str, sentence: str, rule: Rule, measured: Sample | ArrayLike) -> Claim:
    """One check; plain values, one per repeat, are averaged."""
    sample: Any = measured if hasattr(measured, "interval") else Mean(measured)
    return Claim(code, sentence, sample=sample, **rule)


def checks(prefix: str, *entries: Entry, where: str = "", ending: str = "") -> Checks:
    """Checks of one place: their codes share `prefix` and `ending`, their sentences begin with `where`."""
    for code, sentence, rule, measured in entries:
        yield check(f"{prefix}.{code}{ending}", f"{where}: {sentence}" if where else sentence, rule, measured)


def group_by(rows: Rows[PointT], *fields: str) -> Iterator[tuple[Any, Rows[PointT]]]:
    """Runs that share the value of a field, with the value; of several fields, or of none, the values in a tuple."""
    for values in dict.fromkeys(tuple(getattr(row.point, name) for name in fields) for row in rows):
        yield values[0] if len(fields) == 1 else values, rows.where(**dict(zip(fields, values, strict=True)))


def each_point(rows: Rows[PointT]) -> Iterator[tuple[PointT, Rows[PointT]]]:
    """The runs of each point, with the point."""
    for point in dict.fromkeys(row.point for row in rows):
        yield point, rows.where(**vars(point))


def pairs(
    rows: Rows[PointT], of: str | Callable[[Row[PointT]], Any], first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[Array, Array]:
    """A measured quantity of two kinds of runs, in the repeats that have both.

    Parameters
    ----------
    of : name of the quantity, or a function of the row.
    first, second : fields of the point that tell the two kinds apart.
    """
    kinds = [{row.seed: row for row in reversed(rows.where(**fields))} for fields in (first, second)]
    seeds = [seed for seed in dict.fromkeys(row.seed for row in rows) if all(seed in kind for kind in kinds)]
    value = (lambda row: row.measured[of]) if isinstance(of, str) else of
    one, other = (np.array([float(value(kind[seed])) for seed in seeds]) for kind in kinds)
    return one, other
