"""Values of tokens given their attention: a ridge problem per output, solved to a certified gap by dual coordinate ascent.

    minimize  sum_s (g_s - g0_s)^2 / (2 spread_s) + (c - c0)^2 / (2 spread_c) + sum_i bound_i loss(y_i (q_i.g + b))

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
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

Array = NDArray[np.float64]
ReadoutLoss = Literal["logistic", "squared_hinge"]

TOLERANCE = 1e-5  # gap over the objective
MOST_PASSES = 60  # over all documents, before Newton's method takes over
MOST_STEPS, TIGHTER = 200, 4  # steps of that, and how often it tries again with a smaller slope in view


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
    """The minimizer, up to `tolerance` times the objective."""
    from whichtoken.estimators.text.dual_ascent_kernels import ascend

    shares, tokens = problem.shares, problem.shares.shape[1]
    spread = np.ones(tokens + 1) if problem.spread is None else problem.spread
    mean = np.zeros(tokens) if problem.mean is None else problem.mean
    start = np.zeros(tokens) if problem.values is None else problem.values
    rows = problem.rows[problem.bounds[problem.rows] > 0]
    values = start.copy()
    bias, gap = ascend(
        shares.indptr.astype(np.int64), shares.indices.astype(np.int32, copy=False), shares.data, rows.copy(),
        problem.signs, problem.bounds, spread, mean, values, problem.bias, None if problem.loss == "logistic" else True,
        tolerance, MOST_PASSES,
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
    """The minimizer by a trust-region Newton method.

    In z = (g - g0, c - c0) / sqrt(spread) the objective has a curvature of at least 1: |gradient|^2 / 2 bounds what is missing.
    """
    from scipy.optimize import minimize

    shares, signs, bounds = problem.shares[rows], problem.signs[rows], problem.bounds[rows]
    root, root_c = np.sqrt(spread[:-1]), math.sqrt(spread[-1])
    offset = signs * (shares @ start + problem.bias)

    def margins(z: Array) -> Array:  # less the offset
        g = root * z[:-1]
        return np.asarray(signs * (shares @ g + (root_c * z[-1] - mean @ g)))

    def pull_back(slopes: Array) -> Array:
        signed = signs * slopes
        return np.append(root * (shares.T @ signed - mean * signed.sum()), root_c * signed.sum())

    def objective(z: Array) -> tuple[float, Array]:
        m = offset + margins(z)
        losses = np.logaddexp(0, -m) if problem.loss == "logistic" else np.maximum(1 - m, 0) ** 2
        return float(bounds @ losses + z @ z / 2), pull_back(bounds * loss_slopes(m, problem.loss)[0]) + z

    def hessian_product(z: Array, direction: Array) -> Array:
        curvature = bounds * loss_slopes(offset + margins(z), problem.loss)[1]
        return pull_back(curvature * margins(direction)) + direction

    z = np.zeros(len(spread))
    options = {"gtol": math.sqrt(tolerance * objective(z)[0]) / 10, "maxiter": MOST_STEPS}
    value, slope = np.inf, np.full(1, np.inf)
    for _ in range(TIGHTER):
        z = minimize(objective, z, jac=True, hessp=hessian_product, method="trust-ncg", options=options).x
        value, slope = objective(z)
        if slope @ slope / 2 <= tolerance * value:
            break
        options["gtol"] /= 100
    g = root * z[:-1]
    gap = float(slope @ slope / 2 / value) if value > 0 else 0.0
    return SolvedValues(start + g, problem.bias + root_c * float(z[-1]) - float(mean @ g), gap)
