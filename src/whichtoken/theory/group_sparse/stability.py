"""How large a learning rate may be before the value vector leaves the features for the positions.

v_2 = 0 is a fixed point of population gradient descent with curvature E[g(1-g)] |P S 1|^2. It is unstable when
lr * curvature > 2: rounding noise of 1e-18 then grows by |1 - lr * curvature| per step, and training derails. The
curvature is D c/4 under uniform attention, but highest on the way, while attention concentrates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from whichtoken.theory.group_sparse.population import population_map
from whichtoken.theory.group_sparse.problem import Problem

SELECTED = 0.95  # beyond this attention the curvature only falls
LONGEST_PATH = 1 << 18


@dataclass(frozen=True)
class StabilityBounds:
    """Largest stable learning rates; gradient descent from zero has to stay below all of them."""

    uniform: float  # v_2 under uniform attention, 8/(D c)
    path: float  # v_2 at the worst point of the path, 2/max curvature
    value: float  # v_1 under uniform attention, 8/(D sigma^2)

    @property
    def learning_rate(self) -> float:
        """The smallest of the bounds."""
        return min(self.uniform, self.path, self.value)


@lru_cache(maxsize=64)
def stability_bounds(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> StabilityBounds:
    """Learning rates above which gradient descent cannot keep v_2 = 0 or grow v_1 steadily.

    The path is that of small learning rates, on which the position-only population map is followed.
    """
    problem = Problem.checked(groups, sigma, encoding_norm2)
    path = 2 / _highest_curvature(problem)
    return StabilityBounds(8 / (groups * problem.encoding_norm2), path, 8 / (groups * sigma**2))


def default_learning_rate(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> float:
    """A learning rate inside the bounds: min(0.16/D, 2/(D c)), for many groups 0.8 of the bound on the path.

    Above sigma = 1 the first is divided by sigma^2, as the curvature in v_1 grows with it.
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
