"""A plan as a table for the terminal, as sentences for a protocol, and as a figure of the learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.app.displays import MODELS, SHARED, LearningCurvePlanDisplay
from whichtoken.display.templates import template_engine
from whichtoken.errors import UsageError
from whichtoken.files import replacing
from whichtoken.theory.sparse_tokens import Plan
from whichtoken.theory.sparse_tokens.design import LEARNING_RATE, LOSS

if TYPE_CHECKING:
    from whichtoken.estimators.bags.planning import StudyPlan

WAYS = {"reuse": SHARED, "bag_classifier": "BagClassifier"}


def forecast_headings(plan: Plan) -> list[str]:
    """The headings of the columns of `forecast_rows`."""
    return ["model", f"error at {plan.samples}", "error, unlimited", "samples for target", "separable up to"]


def forecast_rows(plan: Plan) -> list[list[str]]:
    """A line per model: predicted error, error with unlimited data, samples for the target, separable up to.

    Samples are those of the whole study, even where attention uses part of them for its query. Attention has a line for each
    way to train it; with unlimited data, all of them have the same error.
    """
    lines = []
    for name, label in WAYS.items():
        way, limit = getattr(plan, name), plan.attention.unlimited_error
        needed = "" if plan.target_error is None else f"{way.samples_needed or 'never'}"
        lines.append([label, _shown(way.error), _shown(limit), needed, ""])
    for name, label in MODELS.items():
        forecast = getattr(plan, name)
        needed = "" if plan.target_error is None else f"{forecast.samples_needed or 'never'}"
        # it is not known more accurately
        separable = float(f"{forecast.capacity:.2g}")
        lines.append([label, _shown(forecast.error), _shown(forecast.unlimited_error), needed, f"{separable:.0f}"])
    return lines


def protocol(plan: Plan) -> str:
    """The plan in sentences that can be pasted into a study protocol."""
    return str(_words().protocol(plan)).strip()


@contextmanager
def planning_errors() -> Iterator[None]:
    """Turn errors about the numbers of a plan into errors that a user can put right."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    except ArithmeticError as error:
        raise UsageError("these numbers are too extreme to compute with; choose more moderate ones") from error


def study_lines(study: StudyPlan) -> list[str]:
    """A plan from a pilot in sentences: whether the theory holds, what was measured, the forecast, and what the theory says."""
    return str(_words().study(study, dict.fromkeys([study.forecast, *study.learning_curve]))).splitlines()


@cache
def _words() -> Any:
    """The sentences of planning.txt, as functions."""
    engine = template_engine("whichtoken.app.pages")
    engine.filters["known"] = _shown
    return engine.get_template("planning.txt", globals={"learning_rate": LEARNING_RATE, "loss": LOSS}).module


def _shown(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:.3g}"


def write_figure(plan: Plan | StudyPlan, path: Path) -> None:
    """Draw the learning curves into a file; its ending decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    LearningCurvePlanDisplay.from_plan(plan, ax=figure.subplots())
    with replacing(path) as fresh:
        try:
            figure.savefig(fresh)
        except ValueError as error:
            raise UsageError(f"--figure {path} cannot be written: {error}") from error
