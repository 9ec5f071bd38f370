"""The compiled loop of `dual_ascent`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

SETTLED = 0.01  # of the largest move of an epoch: a document that moves less can wait
KERNEL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


@njit(cache=True, **KERNEL)
def ascend(
    indptr: Any, indices: Any, data: Any, dense: Any, rows: Any, signs: Any, bounds: Any, spread: Any, dense_spread: float,
    bias_spread: float, mean: Any, values: Any, bias: float, hinge: Any, tolerance: float, most: int, duals: Any,
) -> tuple[float, float]:  # fmt: skip
    """Move the values to the minimizer, in at most so many passes over all documents; return the bias and the relative gap.

    `hinge` is None for the logistic loss, which a compiler knows: it leaves out what the other loss needs. `duals` is where the
    dual variables start; those of the logistic loss lie strictly between 0 and the bound.

    `dense` are features that every document has, of mean 0 and one spread; their values start at 0.

    Relative to the mean every share is dense. What all documents have in common is kept in one number: the values are
    g_s - common spread_s mean_s while the ascent runs, and a document with shares q meets `common` times q.(spread mean).
    """
    np.random.seed(0)  # noqa: NPY002 (the generator of compiled code, of this thread alone)
    start, start_bias, common = values.copy(), bias, 0.0
    direction = np.zeros(dense.shape[1], np.float32)
    curvatures, meets = np.empty(len(signs)), np.zeros(len(signs))
    of_mean = bias_spread
    for s in range(len(mean)):
        of_mean += spread[s] * mean[s] * mean[s]
    for i in rows:
        square = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            s = indices[k]
            square += spread[s] * data[k] * data[k]
            meets[i] += spread[s] * data[k] * mean[s]
        curvatures[i] = square + dense_spread * _product(dense[i], dense[i]) - 2.0 * meets[i] + of_mean
        if duals[i] > 0.0:
            step = signs[i] * duals[i]
            _add(indptr, indices, data, dense, i, step, spread, dense_spread, values, direction)
            common += step
            bias += step * (of_mean - meets[i])
    threshold = 0.0  # a document that moves its output by less is left out until the others have settled
    active, visits = len(rows), 0
    while visits < most * len(rows):
        visits += active
        np.random.shuffle(rows[:active])  # noqa: NPY002
        total_gap, total_loss, largest, k = 0.0, 0.0, 0.0, 0
        while k < active:
            i = rows[k]
            margin = signs[i] * (_output(indptr, indices, data, dense, i, values, direction) - common * meets[i] + bias)
            if hinge is None:
                loss, slack, new = _logistic_visit(margin, duals[i], bounds[i], curvatures[i])
            else:
                loss, slack, new = _hinge_visit(margin, duals[i], bounds[i], curvatures[i])
            total_gap += slack
            total_loss += loss
            moved = abs(new - duals[i]) * curvatures[i]
            largest = max(largest, moved)
            if moved > 0.0:
                step = signs[i] * (new - duals[i])
                _add(indptr, indices, data, dense, i, step, spread, dense_spread, values, direction)
                common += step
                bias += step * (of_mean - meets[i])
                duals[i] = new
            if moved < threshold:
                active -= 1
                rows[k], rows[active] = rows[active], rows[k]
            else:
                k += 1
        threshold = SETTLED * largest
        if total_gap <= tolerance * total_loss:
            # those sums are from margins on the way, and without the ridge: what counts is measured on all documents
            gap = total = 0.0
            for i in rows:
                margin = signs[i] * (
                    _output(indptr, indices, data, dense, i, values, direction) - common * meets[i] + bias
                )
                if hinge is None:
                    loss, slack, _ = _logistic_slack(margin, duals[i], bounds[i])
                else:
                    loss, slack = _hinge_slack(margin, duals[i], bounds[i])
                gap += slack
                total += loss
            total += _product(direction, direction) / dense_spread / 2.0
            total += _ridge(values, bias, common, spread, bias_spread, mean, start, start_bias)
            if gap <= tolerance * total:
                for s in range(len(mean)):
                    values[s] -= common * spread[s] * mean[s]
                return bias, gap / total if total > 0 else 0.0
            active, threshold = len(rows), 0.0
    return bias, np.inf


@njit(**KERNEL)
def _ridge(
    values: Any, bias: float, common: float, spread: Any, bias_spread: float, mean: Any, start: Any, start_bias: float
) -> float:  # fmt: skip
    total, level = 0.0, bias - start_bias
    for s in range(len(mean)):
        moved = values[s] - common * spread[s] * mean[s] - start[s]
        total += moved * moved / spread[s]
        level += mean[s] * moved
    return float((total + level * level / bias_spread) / 2.0)


@njit(**KERNEL)
def _product(one: Any, two: Any) -> float:
    total = np.float32(0.0)
    for k in range(len(one)):
        total += one[k] * two[k]
    return float(total)


@njit(**KERNEL)
def _output(indptr: Any, indices: Any, data: Any, dense: Any, i: int, values: Any, direction: Any) -> float:
    total = 0.0
    for k in range(indptr[i], indptr[i + 1]):
        total += data[k] * values[indices[k]]
    return float(total + _product(dense[i], direction))


@njit(**KERNEL)
def _add(
    indptr: Any, indices: Any, data: Any, dense: Any, i: int, step: float, spread: Any, dense_spread: float, values: Any,
    direction: Any,
) -> None:  # fmt: skip
    for k in range(indptr[i], indptr[i + 1]):
        values[indices[k]] += step * spread[indices[k]] * data[k]
    factor = np.float32(step * dense_spread)
    for k in range(dense.shape[1]):
        direction[k] += factor * dense[i, k]


@njit(**KERNEL)
def _logistic_slack(margin: float, dual: float, bound: float) -> tuple[float, float, float]:
    """Loss and Fenchel-Young term of a document, and log(p / (1 - p)) of its dual variable."""
    loss = max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))
    p = min(max(dual / bound, 1e-300), 1.0 - 1e-16)
    rest = math.log1p(-p)
    t = math.log(p) - rest
    return bound * loss, bound * max(loss + rest + p * (t + margin), 0.0), t


@njit(**KERNEL)
def _logistic_visit(margin: float, dual: float, bound: float, curvature: float) -> tuple[float, float, float]:
    """Loss and Fenchel-Young term before the visit, and the dual variable after it.

    In t = log(p / (1 - p)) the condition t + margin + curvature (bound p - dual) = 0 is increasing, with a slope of at least
    1, so that Newton's steps within a bracket find it even where p is next to 0 or 1.
    """
    loss, slack, t = _logistic_slack(margin, dual, bound)
    low, high = -margin - curvature * (bound - dual), -margin + curvature * dual
    t = min(max(t, low), high)
    for _ in range(50):
        p = 1.0 / (1.0 + math.exp(-t))
        wrong = t + margin + curvature * (bound * p - dual)
        if wrong > 0:
            high = t
        else:
            low = t
        step = wrong / (1.0 + curvature * bound * p * (1.0 - p))
        t = t - step if low < t - step < high else (low + high) / 2
        if abs(step) < 1e-6 * (1.0 + abs(t)):  # each step squares what is missing
            break
    return loss, slack, bound / (1.0 + math.exp(-t))


@njit(**KERNEL)
def _hinge_slack(margin: float, dual: float, bound: float) -> tuple[float, float]:
    """Loss and Fenchel-Young term of a document."""
    short = max(1.0 - margin, 0.0)
    return bound * short**2, max(bound * short**2 - dual + dual * dual / (4.0 * bound) + dual * margin, 0.0)


@njit(**KERNEL)
def _hinge_visit(margin: float, dual: float, bound: float, curvature: float) -> tuple[float, float, float]:
    """Loss and Fenchel-Young term before the visit, and the dual variable after it."""
    loss, slack = _hinge_slack(margin, dual, bound)
    slope = margin - 1.0 + dual / (2.0 * bound)
    return loss, slack, max(dual - slope / (curvature + 1.0 / (2.0 * bound)), 0.0)
