"""The learning curve that a plan predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

import numpy as np

from whichtoken.display.figures import COLOURS, QUIET
from whichtoken.report.displays.base import Display, legend_above
from whichtoken.theory.sparse_tokens import Plan, Task, erm
from whichtoken.theory.sparse_tokens.design import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whichtoken.estimators.bags.planning import StudyPlan

MODELS = {
    "attention": "attention, samples split",
    "pooled": "mean pooling + linear",
    "vectorized": "linear on all tokens",
}
SHARED = "attention, all samples for both"
CURVE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CURVE_POINTS = 1 << 12
MARKERS = "os^D"


class LearningCurvePlanDisplay(Display):
    """Predicted test errors against the number of labelled sequences.

    Parameters
    ----------
    curves : mapping of str to list of tuples
        For each model (samples, error) or, with an interval, (samples, error, low, high).
    samples : int
        What was planned for.
    target : float, optional
        Wanted error.
    floor : float, optional
        What no classifier can beat.
    measured : tuple, optional
        Cross-validated (samples, error, low, high) of a pilot.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curves, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken.report import LearningCurvePlanDisplay
    >>> from whichtoken.theory.sparse_tokens import plan
    >>> study = plan(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=200, samples=800)
    >>> shown = LearningCurvePlanDisplay.from_plan(study)
    >>> shown.ax_.get_xlabel(), list(shown.curves)[:2]
    ('labelled sequences', ['attention, all samples for both', 'attention, samples split'])
    """

    def __init__(
        self,
        curves: Mapping[str, Sequence[tuple[float, ...]]],
        *,
        samples: int,
        target: float | None = None,
        floor: float | None = None,
        measured: tuple[float, float, float, float] | None = None,
    ) -> None:
        self.curves = {name: list(points) for name, points in curves.items()}
        self.samples, self.target, self.floor, self.measured = samples, target, floor, measured

    @classmethod
    def from_plan(cls, plan: Plan | StudyPlan, *, ax: Axes | None = None) -> Self:
        """Draw what `plan` or `plan_study` found.

        Parameters
        ----------
        plan : Plan or StudyPlan
            From the theory alone, or from a pilot.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        made = cls._of_theory(plan) if isinstance(plan, Plan) else cls._of_study(plan)
        return made.plot(ax)

    @classmethod
    def _of_theory(cls, plan: Plan) -> Self:
        sizes = [max(4, round(multiple * plan.samples)) for multiple in CURVE_MULTIPLES]
        models = {"shared": SHARED, **MODELS}
        curves = {label: [(n, predicted_error(plan, name, n)) for n in sizes] for name, label in models.items()}
        return cls(curves, samples=plan.samples, target=plan.target_error, floor=plan.bayes_floor)

    @classmethod
    def _of_study(cls, study: StudyPlan) -> Self:
        points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
        curve = [(point.samples, point.error, point.low, point.high) for point in points]
        holds = study.fits and study.theory is not None and not study.beats_floor
        return cls(
            {"BagClassifier, 90 % interval": curve},
            samples=study.samples,
            target=study.target_error,
            floor=study.theory.bayes_floor if holds and study.theory is not None else None,
            measured=(study.pilot.trained_on, study.pilot.error, *study.pilot.error_interval),
        )

    def _draw(self, ax: Axes) -> None:
        for place, (name, points) in enumerate(self.curves.items()):
            x, y, *interval = np.array(points, dtype=np.float64).T
            ax.plot(x, y, color=COLOURS[place], marker=MARKERS[place % len(MARKERS)], label=name)
            if interval:
                low, high = interval
                ax.fill_between(x, low, high, color=COLOURS[place], alpha=0.2, linewidth=0)
        if self.measured is not None:
            size, error, low, high = self.measured
            reach = [[error - low], [high - error]]
            ax.errorbar([size], [error], reach, fmt="s", capsize=4, color=COLOURS[1], label="cross-validated pilot")
        if self.floor is not None:
            ax.axhline(self.floor, ls=":", color=QUIET, label="no classifier is better")
        if self.target is not None:
            ax.axhline(self.target, ls="--", color=COLOURS[4], label="target")
        ax.axvline(self.samples, ls=":", lw=1, color=QUIET)
        ax.set(xscale="log", xlabel="labelled sequences", ylabel="predicted test error", ylim=(0, None))
        sizes = sorted({int(point[0]) for points in self.curves.values() for point in points})
        ax.set_xticks(sizes, [f"{size}" for size in sizes])
        ax.minorticks_off()
        legend_above(ax)


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
