"""A plan as a table for the terminal, as sentences for a protocol, and as a figure of the learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.display.html import COLORS, QUIET, template_engine
from whichtoken.errors import UsageError
from whichtoken.files import replacing
from whichtoken.theory.sparse_tokens import Plan, Task, erm
from whichtoken.theory.sparse_tokens.design import LEARNING_RATE, LOSS
from whichtoken.theory.sparse_tokens.planner import HARDLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whichtoken.estimators.bags.planning import StudyPlan

MODELS = {"attention": "attention, samples split", "pooled": "mean pooling", "vectorized": "linear on all tokens"}
SHARED = "attention, all samples for both"
CURVE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CURVE_POINTS = 1 << 12
MARKERS = "os^D"
WAYS = {"reuse": SHARED, "bag_classifier": "BagClassifier"}


def forecast_headings(plan: Plan) -> list[str]:
    """The headings of the columns of `forecast_rows`."""
    needed = [] if plan.target_error is None else ["samples for target"]
    return ["model", f"error at {plan.samples}", "error, unlimited", *needed, "separable up to"]


def forecast_rows(plan: Plan) -> list[list[str]]:
    """A line per model: predicted error, error with unlimited data, samples for the target if there is one, separable up to.

    Samples are those of the whole study, even where attention uses part of them for its query. Attention has a line for each
    way to train it; with unlimited data, all of them have the same error.
    """
    lines = []
    for name, label in WAYS.items():
        way, limit = getattr(plan, name), plan.attention.unlimited_error
        lines.append([label, _error_text(way.error), _error_text(limit), *_needed(plan, way), ""])
    for name, label in MODELS.items():
        forecast = getattr(plan, name)
        # it is not known more accurately
        separable = float(f"{forecast.capacity:.2g}")
        errors = _error_text(forecast.error), _error_text(forecast.unlimited_error)
        lines.append([label, *errors, *_needed(plan, forecast), f"{separable:.0f}"])
    return lines


def _needed(plan: Plan, way: Any) -> list[str]:
    return [] if plan.target_error is None else [f"{way.samples_needed or 'never'}"]


def answer(plan: Plan) -> str:
    """Yes or no, and how many samples, in a sentence."""
    ways: dict[str, Any] = {"split": plan.attention, "reuse": plan.reuse}
    chosen = ways.get(plan.recommended, plan.bag_classifier)
    return answer_in_words(
        plan.samples, chosen.error, min(plan.prevalence, 1 - plan.prevalence), plan.target_error, chosen.samples_needed,
        plan.attention.unlimited_error,
    )  # fmt: skip


def answer_in_words(
    samples: int,
    error: float,
    constant: float,
    target: float | None = None,
    needed: int | None = None,
    unlimited: float | None = None,
) -> str:
    """Is the signal detectable, with how many samples; without an `unlimited` error it is not known what more data give."""
    reached = f"with {samples} samples the predicted error is {_error_text(error)}"
    if target is not None and unlimited is not None:
        if needed is None:
            return f"No: an error of {target:g} is not reached with any amount of data; {reached}."
        enough = "Yes" if needed <= samples else "Not yet"
        return f"{enough}: an error of {target:g} needs about {needed} samples; {reached}."
    if not error <= HARDLY * constant:
        more = "" if unlimited is None else f" Unlimited data would give {_error_text(unlimited)}."
        return f"No: {reached}, and a constant answer has {_error_text(constant)}.{more}"
    return f"Yes: {reached}; a constant answer has {_error_text(constant)}."


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
    engine.filters["known"] = _error_text
    return engine.get_template("planning.txt", globals={"learning_rate": LEARNING_RATE, "loss": LOSS}).module


def _error_text(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:.3g}"


def write_figure(plan: Plan | StudyPlan, path: Path) -> None:
    """Draw the learning curves into a file; its ending decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    if isinstance(plan, Plan):
        _draw_plan(figure.subplots(), plan)
    else:
        _draw_study(figure.subplots(), plan)
    with replacing(path) as fresh:
        try:
            figure.savefig(fresh)
        except ValueError as error:
            raise UsageError(f"--figure {path} cannot be written: {error}") from error


def _draw_plan(ax: Axes, plan: Plan) -> None:
    sizes = [max(4, round(multiple * plan.samples)) for multiple in CURVE_MULTIPLES]
    for place, (name, label) in enumerate({"shared": SHARED, **MODELS}.items()):
        errors = [predicted_error(plan, name, n) for n in sizes]
        ax.plot(sizes, errors, color=COLORS[place], marker=MARKERS[place], label=label)
    _finish(ax, sizes, plan, plan.bayes_floor)


def _draw_study(ax: Axes, study: StudyPlan) -> None:
    """The forecast with its interval, and what the pilot itself reached."""
    points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
    sizes, low, high = ([getattr(point, name) for point in points] for name in ("samples", "low", "high"))
    errors = [point.error for point in points]
    ax.plot(sizes, errors, color=COLORS[0], marker=MARKERS[0], label="BagClassifier, 90 % interval")
    ax.fill_between(sizes, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
    error, (least, most) = study.pilot.error, study.pilot.error_interval
    reach = [[error - least], [most - error]]
    ax.errorbar(
        [study.pilot.trained_on], [error], reach, fmt="s", capsize=4, color=COLORS[1], label="cross-validated pilot"
    )
    holds = study.fits and not study.beats_floor
    _finish(ax, sizes, study, study.theory.bayes_floor if holds and study.theory is not None else None)


def _finish(ax: Axes, sizes: list[int], plan: Plan | StudyPlan, floor: float | None) -> None:
    """Add what the curves are compared with, the axes and a legend above, which never covers the data."""
    if floor is not None:
        ax.axhline(floor, ls=":", color=QUIET, label="no classifier is better")
    if plan.target_error is not None:
        ax.axhline(plan.target_error, ls="--", color=COLORS[4], label="target")
    ax.axvline(plan.samples, ls=":", lw=1, color=QUIET)
    ax.set(xscale="log", xlabel="labeled sequences", ylabel="predicted test error", ylim=(0, None))
    ax.set_xticks(sizes, [f"{size}" for size in sizes])
    ax.minorticks_off()
    ax.grid(visible=True, alpha=0.2)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3, fontsize="small")


def predicted_error(plan: Plan, model: str, samples: int) -> float:
    """Predicted test error of a model with more or fewer samples; attention keeps the plan's design."""
    task = Task(plan.length, plan.signal_tokens, plan.strength, plan.prevalence)
    if model in ("attention", "shared"):
        design = plan.design if model == "attention" else plan.shared_design
        return design.error(task, samples / plan.dim, points=CURVE_POINTS)
    ridge = getattr(plan, model).ridge
    return erm(
        model=model, **asdict(task), samples_per_dim=samples / plan.dim, ridge=ridge, loss=LOSS, accuracy=1e-2
    ).test_error
