"""Values of tokens given their attention: a ridge problem per output, solved to a certified gap by dual coordinate ascent.

    minimise  sum_s (g_s - g0_s)^2 / (2 spread_s) + (c - c0)^2 / (2 spread_c) + sum_i bound_i loss(y_i (q_i.g + b))

with the attention q_i (a row of shares) held fixed and c = b + mean.g, the output at a mean attention (0 unless it is given).
Each document has one dual variable, bound_i times the slope of its loss, and a visit makes its own optimality condition exact
(Hsieh et al. 2008; Yu, Huang, Lin 2011). The duality gap is a sum over documents of Fenchel-Young terms
loss(m) + conjugate(p) + p m, so it is known from the margins alone.

Texts have more tokens than documents need, and a few passes are enough. Where there are many more documents than tokens the
ascent slows down; Newton's method then finishes in the primal, where such problems are easy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

Array = NDArray[np.float64]
ReadoutLoss = Literal["logistic", "squared_hinge"]

TOLERANCE = 1e-5  # gap over the objective
MOST_PASSES = 60  # over all documents, before Newton's method takes over
MOST_STEPS, TIGHTER = 200, 4  # steps of that, and how often it tries again with a smaller slope in view
SETTLED = 0.01  # of the largest move of an epoch: a document that moves less can wait
KERNEL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


@dataclass(frozen=True, eq=False)
class RidgeProblem:
    """One output: which documents, with which labels and weights, and where the ridge pulls to."""

    shares: sparse.csr_array  # attention, (n, |S|)
    rows: NDArray[np.int64]  # documents that take part
    signs: Array  # -1 or +1, (n,)
    bounds: Array  # C times the weight of a document, (n,)
    loss: ReadoutLoss = "logistic"
    spread: Array | None = None  # inverse precision of the ridge, (|S| + 1,), that of c last; 1 by default
    values: Array | None = None  # g0, (|S|,); 0 by default
    bias: float = 0.0  # b0
    mean: Array | None = None  # (|S|,)


@dataclass(frozen=True, eq=False)
class SolvedValues:
    """Its solution."""

    values: Array  # g, (|S|,)
    bias: float
    gap: float  # to the minimum, at most, relative to the objective


def solve_values(problem: RidgeProblem, tolerance: float = TOLERANCE) -> SolvedValues:
    """The minimiser, up to `tolerance` times the objective."""
    shares, tokens = problem.shares, problem.shares.shape[1]
    spread = np.ones(tokens + 1) if problem.spread is None else problem.spread
    mean = np.zeros(tokens) if problem.mean is None else problem.mean
    start = np.zeros(tokens) if problem.values is None else problem.values
    rows = problem.rows[problem.bounds[problem.rows] > 0]
    values = start.copy()
    bias, gap = _ascend(
        shares.indptr.astype(np.int64), shares.indices.astype(np.int32, copy=False), shares.data, rows.copy(),
        problem.signs, problem.bounds, spread, mean, values, problem.bias, problem.loss == "logistic", tolerance,
        MOST_PASSES,
    )  # fmt: skip
    if gap > tolerance:
        return _newton(problem, rows, spread, mean, start, tolerance)
    return SolvedValues(values, float(bias), float(gap))


def loss_slopes(margins: Array, loss: ReadoutLoss) -> tuple[Array, Array]:
    """First and second derivative of the loss in the margin."""
    if loss == "logistic":
        wrong = expit(-margins)
        return np.asarray(-wrong), np.asarray(wrong * (1 - wrong))
    return np.asarray(-2 * np.maximum(1 - margins, 0)), np.asarray(2.0 * (margins < 1))


def _newton(
    problem: RidgeProblem, rows: NDArray[np.int64], spread: Array, mean: Array, start: Array, tolerance: float
) -> SolvedValues:
    """The minimiser by a trust-region Newton method.

    In z = (g - g0, c - c0) / sqrt(spread) the objective has a curvature of at least 1: |gradient|^2 / 2 bounds what is missing.
    """
    shares, signs, bounds = problem.shares[rows], problem.signs[rows], problem.bounds[rows]
    root, root_c = np.sqrt(spread[:-1]), math.sqrt(spread[-1])
    offset = signs * (shares @ start + problem.bias)

    def margins(z: Array) -> Array:  # less the offset
        g = root * z[:-1]
        return np.asarray(signs * (shares @ g + (root_c * z[-1] - mean @ g)))

    def pulled(slopes: Array) -> Array:
        signed = signs * slopes
        return np.append(root * (shares.T @ signed - mean * signed.sum()), root_c * signed.sum())

    def objective(z: Array) -> tuple[float, Array]:
        m = offset + margins(z)
        losses = np.logaddexp(0, -m) if problem.loss == "logistic" else np.maximum(1 - m, 0) ** 2
        return float(bounds @ losses + z @ z / 2), pulled(bounds * loss_slopes(m, problem.loss)[0]) + z

    def bent(z: Array, direction: Array) -> Array:
        curvature = bounds * loss_slopes(offset + margins(z), problem.loss)[1]
        return pulled(curvature * margins(direction)) + direction

    z = np.zeros(len(spread))
    options = {"gtol": math.sqrt(tolerance * objective(z)[0]) / 10, "maxiter": MOST_STEPS}
    value, slope = np.inf, np.full(1, np.inf)
    for _ in range(TIGHTER):
        z = minimize(objective, z, jac=True, hessp=bent, method="trust-ncg", options=options).x
        value, slope = objective(z)
        if slope @ slope / 2 <= tolerance * value:
            break
        options["gtol"] /= 100
    g = root * z[:-1]
    gap = float(slope @ slope / 2 / value) if value > 0 else 0.0
    return SolvedValues(start + g, problem.bias + root_c * float(z[-1]) - float(mean @ g), gap)


@njit(cache=True, **KERNEL)
def _ascend(
    indptr: Any, indices: Any, data: Any, rows: Any, signs: Any, bounds: Any, spread: Any, mean: Any, values: Any,
    bias: float, logistic: bool, tolerance: float, most: int,
) -> tuple[float, float]:  # fmt: skip
    """Move the values to the minimiser, in at most so many passes over all documents; return the bias and the relative gap.

    Relative to the mean every share is dense. What all documents have in common is kept in one number: the values are
    g_s - common spread_s mean_s while the ascent runs, and a document with shares q meets `common` times q.(spread mean).
    """
    np.random.seed(0)  # noqa: NPY002 (the generator of compiled code, of this thread alone)
    start, start_bias, common = values.copy(), bias, 0.0
    curvatures, duals, meets = np.empty(len(signs)), np.zeros(len(signs)), np.zeros(len(signs))
    of_mean = spread[len(mean)]
    for s in range(len(mean)):
        of_mean += spread[s] * mean[s] * mean[s]
    for i in rows:
        square = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            s = indices[k]
            square += spread[s] * data[k] * data[k]
            meets[i] += spread[s] * data[k] * mean[s]
        curvatures[i] = square - 2.0 * meets[i] + of_mean
        if logistic:  # its dual variables lie strictly between 0 and the bound
            duals[i] = bounds[i] / 2
            step = signs[i] * duals[i]
            _add(indptr, indices, data, i, step, spread, values)
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
            margin = signs[i] * (_output(indptr, indices, data, i, values) - common * meets[i] + bias)
            if logistic:
                loss, slack, new = _logistic_visit(margin, duals[i], bounds[i], curvatures[i])
            else:
                loss, slack, new = _hinge_visit(margin, duals[i], bounds[i], curvatures[i])
            total_gap += slack
            total_loss += loss
            moved = abs(new - duals[i]) * curvatures[i]
            largest = max(largest, moved)
            if moved > 0.0:
                step = signs[i] * (new - duals[i])
                _add(indptr, indices, data, i, step, spread, values)
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
                margin = signs[i] * (_output(indptr, indices, data, i, values) - common * meets[i] + bias)
                if logistic:
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


@njit(cache=True, **KERNEL)
def _ridge(
    values: Any, bias: float, common: float, spread: Any, mean: Any, start: Any, start_bias: float
) -> float:  # fmt: skip
    total, level = 0.0, bias - start_bias
    for s in range(len(mean)):
        moved = values[s] - common * spread[s] * mean[s] - start[s]
        total += moved * moved / spread[s]
        level += mean[s] * moved
    return float((total + level * level / spread[len(mean)]) / 2.0)


@njit(cache=True, **KERNEL)
def _output(indptr: Any, indices: Any, data: Any, i: int, values: Any) -> float:
    total = 0.0
    for k in range(indptr[i], indptr[i + 1]):
        total += data[k] * values[indices[k]]
    return total


@njit(cache=True, **KERNEL)
def _add(indptr: Any, indices: Any, data: Any, i: int, step: float, spread: Any, values: Any) -> None:
    for k in range(indptr[i], indptr[i + 1]):
        values[indices[k]] += step * spread[indices[k]] * data[k]


@njit(cache=True, **KERNEL)
def _logistic_slack(margin: float, dual: float, bound: float) -> tuple[float, float]:
    """Loss and Fenchel-Young term of a document."""
    small = math.exp(-abs(margin))
    loss = max(-margin, 0.0) + math.log1p(small)
    p, rest = dual / bound, (bound - dual) / bound
    entropy = (p * math.log(p) if p > 0 else 0.0) + (rest * math.log(rest) if rest > 0 else 0.0)
    return bound * loss, bound * max(loss + entropy + p * margin, 0.0)


@njit(cache=True, **KERNEL)
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


@njit(cache=True, **KERNEL)
def _hinge_slack(margin: float, dual: float, bound: float) -> tuple[float, float]:
    """Loss and Fenchel-Young term of a document."""
    short = max(1.0 - margin, 0.0)
    return bound * short**2, max(bound * short**2 - dual + dual * dual / (4.0 * bound) + dual * margin, 0.0)


@njit(cache=True, **KERNEL)
def _hinge_visit(margin: float, dual: float, bound: float, curvature: float) -> tuple[float, float, float]:
    """Loss and Fenchel-Young term before the visit, and the dual variable after it."""
    loss, slack = _hinge_slack(margin, dual, bound)
    slope = margin - 1.0 + dual / (2.0 * bound)
    return loss, slack, max(dual - slope / (curvature + 1.0 / (2.0 * bound)), 0.0)
