"""Values of tokens given their attention: a ridge problem per output, solved to a certified gap by dual coordinate ascent.

    minimise  sum_s (g_s - g0_s)^2 / (2 spread_s) + (b - b0)^2 / (2 spread_b) + sum_i bound_i loss(y_i (q_i.g + b))

with the attention q_i (a row of shares) held fixed. Each document has one dual variable, bound_i times the slope of its loss,
and a visit makes its own optimality condition exact (Hsieh et al. 2008; Yu, Huang, Lin 2011). The duality gap is a sum over
documents of Fenchel-Young terms loss(m) + conjugate(p) + p m, so it is known from the margins alone.

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
MOST_STEPS = 200  # of that
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
    spread: Array | None = None  # inverse precision of the ridge, (|S| + 1,), the bias last; 1 by default
    centre: Array | None = None  # where it pulls to, (|S| + 1,); 0 by default


@dataclass(frozen=True, eq=False)
class SolvedValues:
    """Its solution."""

    values: Array  # g, (|S|,)
    bias: float
    gap: float  # to the minimum, at most, relative to the objective


def solve_values(problem: RidgeProblem, seed: int = 0, tolerance: float = TOLERANCE) -> SolvedValues:
    """The minimiser, up to `tolerance` times the objective."""
    shares, tokens = problem.shares, problem.shares.shape[1]
    spread = np.ones(tokens + 1) if problem.spread is None else problem.spread
    w = np.zeros(tokens + 1) if problem.centre is None else problem.centre.copy()
    rows = problem.rows[problem.bounds[problem.rows] > 0]
    gap = _ascend(
        shares.indptr.astype(np.int64), shares.indices.astype(np.int32, copy=False), shares.data, rows.copy(),
        problem.signs, problem.bounds, spread, w, problem.loss == "logistic", tolerance, MOST_PASSES, seed,
    )  # fmt: skip
    if gap > tolerance:
        w, gap = _newton(problem, rows, spread, w, tolerance)
    return SolvedValues(w[:-1], float(w[-1]), float(gap))


def loss_slopes(margins: Array, loss: ReadoutLoss) -> tuple[Array, Array]:
    """First and second derivative of the loss in the margin."""
    if loss == "logistic":
        wrong = expit(-margins)
        return -wrong, wrong * (1 - wrong)
    return -2 * np.maximum(1 - margins, 0), 2.0 * (margins < 1)


def _newton(
    problem: RidgeProblem, rows: NDArray[np.int64], spread: Array, start: Array, tolerance: float
) -> tuple[Array, float]:
    """The minimiser by a trust-region Newton method, and a bound on what is missing.

    In z = (w - centre) / sqrt(spread) the objective has a curvature of at least 1: |gradient|^2 / 2 bounds what is missing.
    """
    root, signs, bounds = np.sqrt(spread), problem.signs[rows], problem.bounds[rows]
    centre = np.zeros(len(start)) if problem.centre is None else problem.centre
    ones = sparse.csr_array(np.ones((len(rows), 1)))
    design = sparse.hstack([problem.shares[rows], ones], format="csr") @ sparse.diags_array(root)
    design = sparse.diags_array(signs) @ design
    offset = design @ (centre / np.where(root > 0, root, 1.0))

    def value(z: Array) -> tuple[float, Array]:
        margins = offset + design @ z
        losses = np.logaddexp(0, -margins) if problem.loss == "logistic" else np.maximum(1 - margins, 0) ** 2
        slope = design.T @ (bounds * loss_slopes(margins, problem.loss)[0])
        return float(bounds @ losses + z @ z / 2), slope + z

    def bend(z: Array, direction: Array) -> Array:
        curvature = bounds * loss_slopes(offset + design @ z, problem.loss)[1]
        return np.asarray(design.T @ (curvature * (design @ direction)) + direction)

    z = (start - centre) / np.where(root > 0, root, 1.0)
    enough = math.sqrt(2 * tolerance * value(z)[0]) / 2
    options = {"gtol": enough, "maxiter": MOST_STEPS}
    z = minimize(value, z, jac=True, hessp=bend, method="trust-ncg", options=options).x
    objective, gradient = value(z)
    return centre + root * z, float(gradient @ gradient / 2 / objective) if objective > 0 else 0.0


@njit(cache=True, **KERNEL)
def _ascend(
    indptr: Any, indices: Any, data: Any, rows: Any, signs: Any, bounds: Any, spread: Any, w: Any,
    logistic: bool, tolerance: float, most: int, seed: int,
) -> float:  # fmt: skip
    """Move w from the centre to the minimiser, in at most so many passes over all documents; return the relative gap."""
    np.random.seed(seed)  # of this thread's own generator in compiled code
    last, centre = len(w) - 1, w.copy()
    curvatures, duals = np.empty(len(signs)), np.zeros(len(signs))
    for i in rows:
        total = spread[last]
        for k in range(indptr[i], indptr[i + 1]):
            total += spread[indices[k]] * data[k] * data[k]
        curvatures[i] = total
        if logistic:  # its dual variables lie strictly between 0 and the bound
            duals[i] = bounds[i] / 2
            _add(indptr, indices, data, i, signs[i] * duals[i], spread, w)
    threshold = 0.0  # a document that moves its output by less is left out until the others have settled
    active, visits = len(rows), 0
    while visits < most * len(rows):
        visits += active
        np.random.shuffle(rows[:active])
        total_gap, total_loss, largest, k = 0.0, 0.0, 0.0, 0
        while k < active:
            i = rows[k]
            margin = signs[i] * _output(indptr, indices, data, i, w)
            if logistic:
                loss, slack, new = _logistic_visit(margin, duals[i], bounds[i], curvatures[i])
            else:
                loss, slack, new = _hinge_visit(margin, duals[i], bounds[i], curvatures[i])
            total_gap += slack
            total_loss += loss
            moved = abs(new - duals[i]) * curvatures[i]
            largest = max(largest, moved)
            if moved > 0.0:
                _add(indptr, indices, data, i, signs[i] * (new - duals[i]), spread, w)
                duals[i] = new
            if moved < threshold:
                active -= 1
                rows[k], rows[active] = rows[active], rows[k]
            else:
                k += 1
        threshold = SETTLED * largest
        if total_gap <= tolerance * (total_loss + _ridge(w, centre, spread)):
            # those sums are from margins on the way: what counts is measured with the final ones, on all documents
            gap = _relative_gap(indptr, indices, data, rows, signs, bounds, spread, centre, w, duals, logistic)
            if gap <= tolerance:
                return gap
            active, threshold = len(rows), 0.0
    return _relative_gap(indptr, indices, data, rows, signs, bounds, spread, centre, w, duals, logistic)


@njit(cache=True, **KERNEL)
def _relative_gap(
    indptr: Any, indices: Any, data: Any, rows: Any, signs: Any, bounds: Any, spread: Any, centre: Any, w: Any,
    duals: Any, logistic: bool,
) -> float:  # fmt: skip
    gap, total = 0.0, _ridge(w, centre, spread)
    for i in rows:
        margin = signs[i] * _output(indptr, indices, data, i, w)
        if logistic:
            loss, slack = _logistic_slack(margin, duals[i], bounds[i])
        else:
            loss, slack = _hinge_slack(margin, duals[i], bounds[i])
        gap += slack
        total += loss
    return gap / total if total > 0 else 0.0


@njit(cache=True, **KERNEL)
def _ridge(w: Any, centre: Any, spread: Any) -> float:
    total = 0.0
    for s in range(len(w)):
        total += (w[s] - centre[s]) ** 2 / spread[s] / 2 if spread[s] > 0 else 0.0
    return total


@njit(cache=True, **KERNEL)
def _output(indptr: Any, indices: Any, data: Any, i: int, w: Any) -> float:
    total = w[len(w) - 1]
    for k in range(indptr[i], indptr[i + 1]):
        total += data[k] * w[indices[k]]
    return total


@njit(cache=True, **KERNEL)
def _add(indptr: Any, indices: Any, data: Any, i: int, step: float, spread: Any, w: Any) -> None:
    for k in range(indptr[i], indptr[i + 1]):
        w[indices[k]] += step * spread[indices[k]] * data[k]
    w[len(w) - 1] += step * spread[len(w) - 1]


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
