"""The linear support vector machine with an unpenalised bias, by an interior-point method.

Dual variables a in [0, 1]^n of the margins, F = y X / sqrt(n ridge):

    minimise |F^T a|^2 / 2 - sum a    subject to    y . a = 0.

Its multipliers are the primal solution: the bias for the equality, the losses t for a <= 1, the surplus margins s for
a >= 0. Newton's system is diagonal plus rank p, so a step costs n p^2. Exchange methods stall, by rounding, long before
the accuracy reached here when the ridge is small or the best readout is zero.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Array = NDArray[np.float64]

MAX_STEPS = 100
TOLERANCE = 1e-12
KEPT = 0.995  # of the way to the boundary


def support_vectors(X: Array, y: Array, ridge: float) -> tuple[Array, float, float, int]:
    """Readout (p,), bias, duality gap of the mean objective, and steps, for features (n, p) and labels -1 and +1."""
    n = len(y)
    F = y[:, None] * X / math.sqrt(n * ridge)
    a, u, s, t, bias = np.full(n, 0.5), np.full(n, 0.5), np.ones(n), np.ones(n), 0.0  # u = 1 - a, without rounding to 0
    steps, gap = 0, 1.0
    while gap > TOLERANCE and steps < MAX_STEPS:
        steps += 1
        system = _NewtonSystem(F, y, a, u, s, t, bias)
        # Mehrotra's predictor tells how far complementarity can fall, his corrector aims there
        da, _, ds, dt = system.direction(0.0, 0.0, 0.0)
        length = _longest([a, u, s, t], [da, -da, ds, dt])
        gap = float(a @ s + u @ t) / (2 * n)
        predicted = float((a + length * da) @ (s + length * ds) + (u - length * da) @ (t + length * dt)) / (2 * n)
        da, dbias, ds, dt = system.direction(gap * (predicted / gap) ** 3, da * ds, -da * dt)
        length = KEPT * _longest([a, u, s, t], [da, -da, ds, dt])
        a, u, bias = a + length * da, u - length * da, bias + length * dbias
        s, t = s + length * ds, t + length * dt
    w = F.T @ a / math.sqrt(n * ridge)
    objective = np.maximum(1 - y * (X @ w + bias), 0).mean() + ridge / 2 * w @ w
    return w, bias, float(objective - (a.mean() - ridge / 2 * w @ w)), steps


class _NewtonSystem:
    """The optimality conditions, linearised: (F F^T + D) da + y dbias = ..., y . da = ..., D diagonal."""

    def __init__(self, F: Array, y: Array, a: Array, u: Array, s: Array, t: Array, bias: float) -> None:
        self.F, self.y, self.a, self.u, self.s, self.t = F, y, a, u, s, t
        self.residual = F @ (F.T @ a) - 1 + bias * y - s + t
        self.diagonal = s / a + t / u
        scaled = F / np.sqrt(self.diagonal)[:, None]
        self.factor = cho_factor(np.eye(F.shape[1]) + scaled.T @ scaled)
        self.border = self._solve(y)

    def _solve(self, right: Array) -> Array:
        """Woodbury: the inverse of a diagonal plus a matrix of rank p."""
        plain = right / self.diagonal
        solution: Array = plain - self.F @ cho_solve(self.factor, self.F.T @ plain) / self.diagonal
        return solution

    def direction(self, target: float, low: Array | float, high: Array | float) -> tuple[Array, float, Array, Array]:
        """Step in (a, bias, s, t) towards a s = u t = target, with second-order terms `low` and `high`."""
        a, u, s, t = self.a, self.u, self.s, self.t
        rest_s, rest_t = (target - low) / a - s, (target - high) / u - t
        free = self._solve(rest_s - rest_t - self.residual)
        dbias = float(self.y @ (self.a + free)) / float(self.y @ self.border)
        da = free - dbias * self.border
        return da, dbias, rest_s - s / a * da, rest_t + t / u * da


def _longest(values: list[Array], changes: list[Array]) -> float:
    """Largest multiple of a step, at most 1, that leaves no value negative."""
    value, change = np.concatenate(values), np.concatenate(changes)
    falling = change < 0
    return float(np.min(-value[falling] / change[falling], initial=1.0))
