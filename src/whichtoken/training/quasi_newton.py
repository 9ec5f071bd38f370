"""Limited-memory BFGS for a few steps on small smooth problems.

The two-loop recursion of Nocedal and Wright, Numerical Optimization, algorithm 7.4, with step halving. Compiled, a step
costs about as much as four products with the remembered moves; where the objective itself takes well under a
millisecond, a general-purpose minimiser spends more on its own bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEMORY = 20
HALVINGS = 20


def quasi_newton(
    objective: Callable[[Array], tuple[float, Array]], start: Array, steps: int, tolerance: float = 1e-9
) -> Array:
    """A point with a smaller value than `start`, after at most `steps` steps.

    Parameters
    ----------
    objective : callable
        From a point (p,) to the value and the gradient (p,).
    start : array (p,)
    steps : int
    tolerance : float
        The steps end early when one lowers the value by less than this, relative to the larger of 1 and the value.
    """
    x, (value, gradient) = start, objective(start)
    moves, changes = np.zeros((2, MEMORY, len(x)))  # of the point and of the gradient, the k-th in row k % MEMORY
    stored = 0
    for _ in range(steps):
        direction = _direction(moves, changes, stored, gradient)
        slope = float(gradient @ direction)
        # without curvature known yet, a step of length one at most
        length = 1.0 if stored else 1 / max(1.0, float(np.linalg.norm(direction)))
        for _ in range(HALVINGS):
            trial = x + length * direction
            trial_value, trial_gradient = objective(trial)
            if trial_value <= value + 1e-4 * length * slope:
                break
            length /= 2
        else:
            return x
        move, change = trial - x, trial_gradient - gradient
        # a direction of negative curvature would make the metric indefinite
        if move @ change > 1e-10 * (change @ change):
            moves[stored % MEMORY], changes[stored % MEMORY] = move, change
            stored += 1
        gained = value - trial_value
        x, value, gradient = trial, trial_value, trial_gradient
        if gained <= tolerance * max(abs(value), 1.0):
            return x
    return x


@njit(cache=True, nogil=True)
def _direction(moves: Array, changes: Array, stored: int, gradient: Array) -> Array:
    """Minus the gradient in the metric of what is remembered."""
    memory = len(moves)
    count = min(stored, memory)
    direction = -gradient
    if count == 0:
        return direction
    factors = np.empty(count)
    for back in range(count):
        k = (stored - 1 - back) % memory
        factors[back] = np.dot(moves[k], direction) / np.dot(moves[k], changes[k])
        direction -= factors[back] * changes[k]
    k = (stored - 1) % memory
    direction *= np.dot(moves[k], changes[k]) / np.dot(changes[k], changes[k])
    for back in range(count - 1, -1, -1):
        k = (stored - 1 - back) % memory
        direction += (factors[back] - np.dot(changes[k], direction) / np.dot(moves[k], changes[k])) * moves[k]
    return direction
