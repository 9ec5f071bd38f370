"""Capacity: up to how many samples per dimension the training set is linearly separable."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw, refinements

Array = NDArray[np.float64]


def capacity(
    *,
    model: str = "attention",
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    alignment: float | None = None,
    inverse_temperature: float | None = None,
    accuracy: float = 1e-3,
    points: float = math.inf,
) -> float:
    """Samples per dimension below which some readout and bias separate the training set, with high probability.

    Conjecture 1 of Barnfield, Cui, Lu (arXiv 2509.25153), in the form that Gordon's comparison gives: one over the minimum
    over (om, m, b) of E[(sqrt(1 + m^2) G - y (om f1 + m f2 + b) / sqrt(rho))_+^2].

    Parameters
    ----------
    model : {"attention", "pooled", "vectorized"}, default="attention"
        Which classifier.
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    alignment, inverse_temperature : float, optional
        Cosine of query and signal, and inverse temperature times norm of the query; needed for attention only.
    accuracy : float, default=0.001
        Wanted relative numerical error.
    points : float, default=inf
        At most this many Sobol points per class are spent on the accuracy.

    Returns
    -------
    float
        n / d.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import capacity
    >>> task = dict(length=4, signal_tokens=1, strength=2.0, prevalence=0.5)
    >>> pooled, flat = (capacity(model=model, **task) for model in ("pooled", "vectorized"))
    >>> abs(flat / pooled - 4) < 0.01  # one weight per position separates `length` times as many
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    overlaps, value = np.zeros(3), math.nan
    for laws in refinements(task, model, alignment, inverse_temperature):
        values = []
        for law in laws:
            violation, overlaps = _least_violation(law, overlaps)
            values.append(1 / violation)
        previous, value = value, float(np.mean(values))
        error = max(2 * float(np.std(values)) / math.sqrt(len(laws)), abs(value - previous) / 4)
        if error <= accuracy * value or laws[0].label.size >= 2 * points:
            break
    return value * length if model == "vectorized" else value


def _least_violation(law: FeatureLaw, start: Array) -> tuple[float, Array]:
    """Least mean squared violation of the margin over (om, m, b), and where: a smooth convex problem.

    With S^2 = 1 + m^2 + om^2 var(g_bar) / rho and T = y (om f1 + m f2 + b) / sqrt(rho), a node contributes
    E[(S G - T)_+^2] = (S^2 + T^2) Phi(-T/S) - T S phi(T/S).
    """
    root = law.label / np.sqrt(law.spread)
    columns = np.stack([root * law.query_mean, root * law.signal_mean, root])  # (3, nodes)
    variances = np.stack([law.query_variance / law.spread, np.ones_like(root), np.zeros_like(root)])

    def violation(x: Array) -> float:
        level, margin, tail, density = _terms(x)
        return float(law.weight @ ((level**2 + margin**2) * tail - margin * level * density))

    def gradient(x: Array) -> Array:
        level, margin, tail, density = _terms(x)
        return 2 * (columns @ (law.weight * (margin * tail - level * density)) + x * (variances @ (law.weight * tail)))

    def hessian(x: Array) -> Array:
        level, margin, tail, density = _terms(x)
        slope = variances * x[:, None] / level  # of the level
        cross = (columns * (law.weight * density)) @ slope.T
        both = (columns * (law.weight * tail)) @ columns.T
        bend = (slope * (law.weight * density * margin / level)) @ slope.T
        return 2 * (both - cross - cross.T + bend + np.diag(variances @ (law.weight * tail)))

    def _terms(x: Array) -> tuple[Array, Array, Array, Array]:
        level = np.sqrt(1 + x**2 @ variances)
        margin = x @ columns
        ratio = margin / level
        return level, margin, ndtr(-ratio), np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)

    found = minimize(violation, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-9})
    return float(found.fun), found.x
