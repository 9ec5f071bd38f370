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
    indptr: Any, indices: Any, data: Any, dense: Any, rows: Any, signs: Any, bounds: Any, spread: Any, mean: Any, values: Any,
    bias: float, hinge: Any, tolerance: float, most: int, duals: Any,
) -> tuple[float, float]:  # fmt: skip
    """Move the values to the minimizer, in at most so many passes over all documents; return the bias and the relative gap.

    `hinge` is None for the logistic loss, which a compiler knows: it leaves out what the other loss needs. `duals` is where the
    dual variables start; those of the logistic loss lie strictly between 0 and the bound.

    The last columns, which every document has, stand in `dense`.

    Relative to the mean every share is dense. What all documents have in common is kept in one number: the values are
    g_s - common spread_s mean_s while the ascent runs, and a document with shares q meets `common` times q.(spread mean).
    """
    np.random.seed(0)  # noqa: NPY002 (the generator of compiled code, of this thread alone)
    start, start_bias, common = values.copy(), bias, 0.0
    curvatures, meets = np.empty(len(signs)), np.zeros(len(signs))
    of_mean, first = spread[len(mean)], len(mean) - dense.shape[1]
    for s in range(len(mean)):
        of_mean += spread[s] * mean[s] * mean[s]
    for i in rows:
        square = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            s = indices[k]
            square += spread[s] * data[k] * data[k]
            meets[i] += spread[s] * data[k] * mean[s]
        for k in range(dense.shape[1]):
            s = first + k
            square += spread[s] * dense[i, k] * dense[i, k]
            meets[i] += spread[s] * dense[i, k] * mean[s]
        curvatures[i] = square - 2.0 * meets[i] + of_mean
        if duals[i] > 0.0:
            step = signs[i] * duals[i]
            _add(indptr, indices, data, dense, i, step, spread, values)
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
            margin = signs[i] * (_output(indptr, indices, data, dense, i, values) - common * meets[i] + bias)
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
                _add(indptr, indices, data, dense, i, step, spread, values)
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
                margin = signs[i] * (_output(indptr, indices, data, dense, i, values) - common * meets[i] + bias)
                if hinge is None:
                    loss, slack = _logistic_slack(margin, duals[i], bounds[i])
                else:
                    loss, slack = _hinge_slack(margin, duals[i], bounds[i])
                gap += slack
                total += loss
            total += _ridge(values, bias, common, spread, mean, start, start_bias)
            if gap <= tolerance * total:
                for s in range(len(mean)):
                    values[s] -= common * spread[s] * mean[s]
                return bias, gap / total if total > 0 else 0.0
            active, threshold = len(rows), 0.0
    return bias, np.inf


@njit(**KERNEL)
def _ridge(
    values: Any, bias: float, common: float, spread: Any, mean: Any, start: Any, start_bias: float
) -> float:  # fmt: skip
    total, level = 0.0, bias - start_bias
    for s in range(len(mean)):
        moved = values[s] - common * spread[s] * mean[s] - start[s]
        total += moved * moved / spread[s]
        level += mean[s] * moved
    return float((total + level * level / spread[len(mean)]) / 2.0)


@njit(**KERNEL)
def _output(indptr: Any, indices: Any, data: Any, dense: Any, i: int, values: Any) -> float:
    total, first = 0.0, len(values) - dense.shape[1]
    for k in range(indptr[i], indptr[i + 1]):
        total += data[k] * values[indices[k]]
    for k in range(dense.shape[1]):
        total += dense[i, k] * values[first + k]
    return total


@njit(**KERNEL)
def _add(
    indptr: Any, indices: Any, data: Any, dense: Any, i: int, step: float, spread: Any, values: Any
) -> None:  # fmt: skip
    first = len(values) - dense.shape[1]
    for k in range(indptr[i], indptr[i + 1]):
        values[indices[k]] += step * spread[indices[k]] * data[k]
    for k in range(dense.shape[1]):
        values[first + k] += step * spread[first + k] * dense[i, k]


@njit(**KERNEL)
def _logistic_slack(margin: float, dual: float, bound: float) -> tuple[float, float]:
    """Loss and Fenchel-Young term of a document."""
    small = math.exp(-abs(margin))
    loss = max(-margin, 0.0) + math.log1p(small)
    p, rest = dual / bound, (bound - dual) / bound
    entropy = (p * math.log(p) if p > 0 else 0.0) + (rest * math.log(rest) if rest > 0 else 0.0)
    return bound * loss, bound * max(loss + entropy + p * margin, 0.0)


@njit(**KERNEL)
def _logistic_visit(margin: float, dual: float, bound: float, curvature: float) -> tuple[float, float, float]:
    """Loss and Fenchel-Young term before the visit, and the dual variable after it.

    In t = log(p / (1 - p)) the condition t + margin + curvature (bound p - dual) = 0 is increasing, with a slope of at least
    1, so that Newton's steps within a bracket find it even where p is next to 0 or 1.
    """
    loss, slack = _logistic_slack(margin, dual, bound)
    low, high = -margin - curvature * (bound - dual), -margin + curvature * dual
    p = min(max(dual / bound, 1e-300), 1.0 - 1e-16)
    t = min(max(math.log(p) - math.log1p(-p), low), high)
    for _ in range(50):
        p = 1.0 / (1.0 + math.exp(-t))
        wrong = t + margin + curvature * (bound * p - dual)
        if wrong > 0:
            high = t
        else:
            low = t
        step = wrong / (1.0 + curvature * bound * p * (1.0 - p))
        if abs(step) < 1e-12 * (1.0 + abs(t)):
            break
        t = t - step if low < t - step < high else (low + high) / 2
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
