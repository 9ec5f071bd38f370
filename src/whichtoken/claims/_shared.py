"""Rules that are written where a check is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from whichtoken.claims._checks import Array as Array
from whichtoken.claims._checks import Axes as Axes
from whichtoken.claims._checks import Checks as Checks
from whichtoken.claims._checks import Figure as Figure
from whichtoken.claims._checks import Predictions as Predictions
from whichtoken.claims._checks import each_point as each_point
from whichtoken.claims._checks import group_by as group_by
from whichtoken.claims._checks import pairs as pairs
from whichtoken.lab import Check, Mean, Rows
from whichtoken.lab.samples import Sample

Rule = Mapping[str, Any]  # the fields of a `Check` that say what would refute it
Entry = tuple[str, str, Rule, Sample | ArrayLike]  # of a table of checks: code, sentence, rule and what was measured


def above(bound: float, theory_error: float = 0.0) -> Rule:
    """The measurement does not fall below the bound."""
    return {"comparison": "at least", "theory": bound, "theory_error": theory_error}


def below(bound: float, theory_error: float = 0.0) -> Rule:
    """The measurement does not exceed the bound."""
    return {"comparison": "at most", "theory": bound, "theory_error": theory_error}


def near(theory: float | None, within: float, theory_error: float = 0.0, material: float | None = None) -> Rule:
    """The measurement lies within a tolerance of the prediction; None where there is none."""
    return {
        "comparison": "equal",
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


def check(code: str, sentence: str, rule: Rule, measured: Sample | ArrayLike) -> Check:
    """One check; plain values, one per repeat, are averaged."""
    sample: Any = measured if hasattr(measured, "interval") else Mean(measured)
    return Check(code, sentence, sample=sample, **rule)


def checks(prefix: str, *entries: Entry, where: str = "", ending: str = "") -> Checks:
    """Checks of one place: their codes share `prefix` and `ending`, their sentences begin with `where`."""
    for code, sentence, rule, measured in entries:
        yield check(f"{prefix}.{code}{ending}", f"{where}: {sentence}" if where else sentence, rule, measured)
