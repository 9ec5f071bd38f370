"""How a descent gets to where it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.display.figures import COLOURS
from whichtoken.margin import MarginCertificate
from whichtoken.report.displays.base import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALLEST = 1e-16  # a distance that cannot be told from none


class TrajectoryDisplay(Display):
    """How far the direction of the weights is from its limit, step by step, or how the loss falls.

    Parameters
    ----------
    steps : array_like of shape (k,)
        Steps, or lengths of the way.
    values : array_like of shape (k,)
        What is followed.
    ylabel : str
        What that is.
    xlabel : str, default="step"
        What is counted.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curve, once `plot` was called.
    figure_ : matplotlib Figure
        Around it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import linear_descent
    >>> from whichtoken.report import TrajectoryDisplay
    >>> run = linear_descent([[2.0, 0.0], [0.0, 1.0]], np.zeros(2), p=2.0, lr=0.1, steps=500, record=[1, 10, 100, 500])
    >>> shown = TrajectoryDisplay.from_result(run, limit=[1.0, 2.0])
    >>> shown.steps.tolist(), bool(shown.values[-1] < shown.values[0])
    ([1.0, 10.0, 100.0, 500.0], True)
    """

    def __init__(self, steps: ArrayLike, values: ArrayLike, *, ylabel: str, xlabel: str = "step") -> None:
        self.steps, self.values = (np.asarray(part, dtype=np.float64) for part in (steps, values))
        self.xlabel, self.ylabel = xlabel, ylabel

    @classmethod
    def from_result(
        cls, result: Any, *, limit: ArrayLike | MarginCertificate | None = None, ax: Axes | None = None
    ) -> Self:
        """Draw what a descent or a flow of `whichtoken.flows`, or a `StructureAwareDescent`, recorded.

        Parameters
        ----------
        result : DescentResult, OptimizerDescent, JointResult, LinearResult, ClsPath, FactorDescent or AttentionFit
            A descent needs recorded steps (`record=`).
        limit : array_like or MarginCertificate, optional
            The direction to compare with; by default the last one of the result.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        descent = getattr(result, "descent", result)
        if hasattr(descent, "trace"):
            accepted = descent.accepted
            steps, losses = [iterate.iteration for iterate in accepted], [iterate.loss for iterate in accepted]
            return cls(steps, losses, ylabel="training loss").plot(ax)
        steps, directions, xlabel = _way(result)
        if len(steps) < 2:
            raise ValueError("the result holds fewer than two recorded steps; pass record= to the descent")
        goal = limit.direction if isinstance(limit, MarginCertificate) else limit
        if limit is not None and goal is None:
            raise ValueError("the certificate has no direction to compare with")
        target, told = (directions[-1], "the last direction") if goal is None else (np.asarray(goal), "the limit")
        distances = [_distance(direction, target) for direction in directions]
        if goal is None:
            steps, distances = steps[:-1], distances[:-1]
        return cls(steps, distances, ylabel=f"distance of the direction from {told}", xlabel=xlabel).plot(ax)

    def _draw(self, ax: Axes) -> None:
        ax.plot(self.steps, np.maximum(self.values, SMALLEST), "o-", color=COLOURS[0], ms=4)
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        if (self.values > 0).any():
            ax.set_yscale("log")
        if (self.steps > 0).all() and self.steps.max() > 50 * self.steps.min():
            ax.set_xscale("log")


def _way(result: Any) -> tuple[list[float], list[Any], str]:
    """Steps and directions of a result, and what the steps are."""
    if hasattr(result, "arc"):
        # the start has no length, and its direction is not one of the position
        return result.arc[1:].tolist(), list(result.positions[1:]), "length of the way"
    states = [getattr(state, "weights", state) if hasattr(state, "decoder") else state for state in _states(result)]
    return [state.step for state in states], [state.direction for state in states], "step"


def _states(result: Any) -> list[Any]:
    """The recorded states, and the last one where it was not recorded."""
    last = result.final if not result.snapshots or _step(result.snapshots[-1]) < _step(result.final) else None
    return [*result.snapshots, *([last] if last is not None else [])]


def _step(state: Any) -> int:
    return int(state.weights.step if hasattr(state, "decoder") else state.step)


def _distance(direction: Any, target: Any) -> float:
    """1 - cosine, without the cancellation near zero."""
    a, b = (np.ravel(part) / np.linalg.norm(part) for part in (direction, target))
    return float(np.sum((a - b) ** 2) / 2)
