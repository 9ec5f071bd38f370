"""How large a learning rate may be before the value vector leaves the features for the positions.

v_2 = 0 is a fixed point of population gradient descent with curvature E[g(1-g)] |P S 1|^2. It is unstable when
lr * curvature > 2: rounding noise of 1e-18 then grows by |1 - lr * curvature| per step, and training derails. The
curvature is D c/4 under uniform attention, but highest on the way, while attention concentrates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from whichtoken.display.shown import Shown
from whichtoken.theory.group_sparse.population import population_map
from whichtoken.theory.group_sparse.problem import Problem

SELECTED = 0.95  # beyond this attention the curvature only falls
LONGEST_PATH = 1 << 18


@dataclass(frozen=True)
class StabilityBounds(Shown):
    """Largest stable learning rates; gradient descent from zero has to stay below all of them.

    Attributes
    ----------
    uniform : float
        Bound that v_2 sets under uniform attention, 8/(D c).
    path : float
        Bound that v_2 sets at the worst point of the path, 2/max curvature.
    value : float
        Bound that v_1 sets under uniform attention, 8/(D sigma^2).

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import stability_bounds
    >>> bounds = stability_bounds(groups=4)
    >>> bounds.learning_rate == min(bounds.uniform, bounds.path, bounds.value)
    True
    """

    uniform: float
    path: float
    value: float

    @property
    def learning_rate(self) -> float:
        """The smallest of the bounds."""
        return min(self.uniform, self.path, self.value)


@lru_cache(maxsize=64)
def stability_bounds(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> StabilityBounds:
    """Learning rates above which gradient descent cannot keep v_2 = 0 or grow v_1 steadily.

    The path is that of small learning rates, on which the position-only population map is followed.

    Parameters
    ----------
    groups : int
        D >= 2.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    StabilityBounds
        Three bounds on the learning rate.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import stability_bounds
    >>> stability_bounds(groups=4).value
    2.0
    """
    problem = Problem.checked(groups, sigma, encoding_norm2)
    path = 2 / _highest_curvature(problem)
    return StabilityBounds(8 / (groups * problem.encoding_norm2), path, 8 / (groups * sigma**2))


def default_learning_rate(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> float:
    """A learning rate inside the bounds: min(0.16/D, 2/(D c)), for many groups 0.8 of the bound on the path.

    Above sigma = 1 the first is divided by sigma^2, as the curvature in v_1 grows with it.

    Parameters
    ----------
    groups : int
        D >= 2.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    float
        Learning rate of W and v.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import default_learning_rate, stability_bounds
    >>> default_learning_rate(groups=4) < stability_bounds(groups=4).learning_rate
    True
    """
    problem = Problem.checked(groups, sigma, encoding_norm2)
    path = stability_bounds(groups=groups, sigma=sigma, encoding_norm2=encoding_norm2).path
    return min(_smooth_rate(problem), 2 / (groups * problem.encoding_norm2), 0.8 * path)


def _smooth_rate(problem: Problem) -> float:
    return 0.16 / (problem.groups * max(1.0, problem.sigma**2))


def _highest_curvature(problem: Problem) -> float:
    # the gap moves at most as fast as c^2/4 per unit of time: keep its step small too
    lr = min(_smooth_rate(problem), 0.4 / problem.encoding_norm2)
    steps = 4096
    while True:
        trajectory = population_map(
            groups=problem.groups, lr=lr, steps=steps, sigma=problem.sigma, encoding_norm2=problem.encoding_norm2
        )
        if trajectory.attention[-1] > SELECTED or steps >= LONGEST_PATH:
            return float(trajectory.curvature.max())
        steps *= 4
