"""The l_p problem min |w|_p subject to A w >= b for 1 < p < inf, by a primal-dual interior-point method.

The optimality conditions are u = A^T mu, s = A w - b >= 0, mu >= 0, mu s = 0, and (w, u) on the curve u = sign(w) |w|^(p-1).
Newton's method, moving along that curve, needs one Cholesky factor of A diag(dw/du) A^T + diag(s/mu) a step. Near the
solution the tight rows are known, and Newton's method on them alone finishes: fewer equations, quadratic convergence,
multipliers that are exactly zero off the support.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from whichtoken.margin.cholesky import cholesky
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.curve import Curve, curve_of
from whichtoken.margin.geometry import Norm
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector

ITERATIONS, FINISHING, SHORTENINGS = 60, 8, 3
CONVERGED, ROUGH = 1e-12, 1e-2
TRY_TO_FINISH = 1e-3  # gap below which the tight rows are worth guessing
STAGE = 2.4  # largest change of log(p - 1) in one go: 1.1 and 11 are reached from p = 2 directly


def minimal_power_norm(rows: Constraints, start: Solution, norm: Norm) -> Solution:
    """Minimal norm weights for unit rows, 1 < p < inf, from the Euclidean solution of the same rows."""
    p = norm.p
    stages = max(int(np.ceil(abs(np.log(p - 1)) / STAGE)), 1)
    with np.errstate(all="ignore"):  # a solve that breaks down returns its best pair, which is judged by its gap
        for stage in range(1, stages + 1):
            exponent = 1 + (p - 1) ** (stage / stages)
            start = _solve(
                _starting_point(rows, curve_of(norm, exponent), start), CONVERGED if stage == stages else ROUGH
            )
    return start


@dataclass(frozen=True)
class _Point:
    """An iterate and its residuals."""

    rows: Constraints
    rhs: Vector
    curve: Curve
    weights: Vector
    dual: Vector  # on the curve with the weights
    multipliers: Vector
    slack: Vector  # zero on equalities

    @cached_property
    def scores(self) -> Vector:
        return self.rows.apply(self.weights)

    @cached_property
    def combined(self) -> Vector:
        return self.rows.adjoint(self.multipliers)

    @cached_property
    def merit(self) -> float:
        """Relative residuals of the optimality conditions, added up."""
        infeasibility = np.abs(self.scores - self.slack - self.rhs).max() / self.rhs.max()
        stationarity = np.abs(self.combined - self.dual).max() / np.abs(self.combined).max()
        return float(infeasibility + stationarity + self.multipliers @ self.slack / (self.multipliers @ self.rhs))

    @cached_property
    def gap(self) -> float:
        """Duality gap of the pair, or the violation of rows that no scaling of w can mend, whichever is worse."""
        positive, measure = self.rhs > 0, self.curve.norm
        if not positive.any():  # scales too far apart for the powers of this p
            return np.inf
        norm = np.float64(measure.of(self.weights))  # numpy's division: zero makes a bad gap, not an error
        margin = np.min(self.scores[positive] / self.rhs[positive]) / norm
        bound = measure.dual().of(self.combined) / (self.multipliers @ self.rhs)
        if positive.all():
            return float(1 - margin / bound)
        violation = np.where(self.rows.free, np.abs(self.scores), -self.scores) / self.rows.norms(
            measure.dual().row_exponent
        )
        return float(np.maximum(1 - margin / bound, np.nanmax(violation[~positive], initial=0.0) / norm))


def _starting_point(rows: Constraints, curve: Curve, start: Solution) -> _Point:
    """Inside the cones and on the curve, with right-hand sides scaled so that the largest w is one.

    For p < 2 the dual side is started from, for p > 2 the primal one: each is where the map to the other side is smooth.
    Weights that do not separate the rows are no place to start from.
    """
    inequality, positive = ~rows.free, rows.rhs > 0
    multipliers = np.where(
        inequality, start.multipliers + 0.1 * start.multipliers[inequality].mean(), start.multipliers
    )
    if curve.p < 2 or not np.all(rows.apply(start.weights)[positive] > 0):
        dual = rows.adjoint(multipliers)
        size = curve.largest(dual)
        dual, multipliers = dual / size, multipliers / size
        weights = curve.primal(dual)
        rhs = rows.rhs * curve.power(weights) / (rows.rhs @ multipliers)
        slack = np.maximum(rows.apply(weights) - rhs, 0.1 * rhs.max())
    else:
        weights = start.weights / curve.largest(start.weights)
        dual = curve.dual(weights)
        scores = rows.apply(weights)
        rhs = rows.rhs * 0.9 * np.min(scores[positive] / rows.rhs[positive])
        slack = np.maximum(scores - rhs, 0.01 * rhs.max())
        multipliers = multipliers * curve.power(weights) / (rhs @ multipliers)
    return _Point(rows, rhs, curve, weights, dual, multipliers, np.where(inequality, slack, 0.0))


def _solve(point: _Point, tolerance: float) -> Solution:
    best, finish_below = point, TRY_TO_FINISH
    for _ in range(ITERATIONS):
        if point.gap < finish_below:
            finish_below = 0.01 * point.gap
            best = min(best, _finish(point, tolerance), key=lambda candidate: candidate.gap)
        if best.gap <= tolerance:
            break
        try:
            point = _advance(point)
        except np.linalg.LinAlgError:
            break
        if not np.isfinite(point.gap):
            break
        if not best.gap <= point.gap:
            best = point
    return Solution(best.weights, best.multipliers)


def _advance(point: _Point) -> _Point:
    """One step of Mehrotra's predictor-corrector method, shortened if the residuals do not shrink."""
    rows, inequality = point.rows, ~point.rows.free
    multipliers, slack = point.multipliers, point.slack
    divisor = np.where(inequality, multipliers, 1.0)
    tangent = point.curve.tangent(point.weights, point.dual)
    solve = cholesky(tangent.gram(rows), slack / divisor)
    stationarity = point.combined - point.dual
    right = point.rhs + slack - point.scores - rows.apply(tangent.image(stationarity))

    def newton(target: Vector) -> tuple[Vector, Vector, float]:
        """Changes of mu and s that bring mu s to the target, and the step at which one of them vanishes."""
        by_multiplier = solve(right + target / divisor)
        by_slack = np.where(inequality, (target - slack * by_multiplier) / divisor, 0.0)
        shrink = np.maximum(-by_multiplier / divisor, -by_slack / np.where(inequality, slack, 1.0))
        return by_multiplier, by_slack, 1 / max(float(shrink.max(where=inequality, initial=0.0)), 1.0)

    products = multipliers * slack
    by_multiplier, by_slack, step = newton(-products)
    left_over = np.sum((multipliers + step * by_multiplier) * (slack + step * by_slack)) / np.sum(products)
    center = min(1.0, left_over) ** 3 * np.sum(products) / np.sum(inequality)
    by_multiplier, by_slack, step = newton(
        np.where(inequality, center, 0.0) - products - step * by_multiplier * by_slack
    )
    change = rows.adjoint(by_multiplier) + stationarity
    step = min(0.99 * step, tangent.trusted_step(change))
    for _ in range(SHORTENINGS):
        weights, dual = tangent.move(change, step)
        moved = replace(
            point,
            weights=weights,
            dual=dual,
            multipliers=multipliers + step * by_multiplier,
            slack=slack + step * by_slack,
        )
        if moved.merit <= (1 - 0.1 * step) * point.merit:
            break
        step /= 2
    return moved


def _finish(point: _Point, tolerance: float) -> _Point:
    """Newton's method on the tight rows, which are guessed anew from multipliers and scores after every step."""
    rows, best = point.rows, point
    tight = rows.free | (point.multipliers * point.slack.max() > point.slack * point.multipliers.max())
    for _ in range(FINISHING):
        if not tight[~rows.free].any():
            break
        active, tangent = rows.subset(tight), point.curve.tangent(point.weights, point.dual)
        multipliers = np.where(tight, point.multipliers, 0.0)
        stationarity = rows.adjoint(multipliers) - point.dual
        gram = tangent.gram(active)
        stiffness = float(np.mean(np.diagonal(gram)))
        try:
            solve = cholesky(gram, 1e-13 * stiffness)
        except np.linalg.LinAlgError:
            break
        by_multiplier = solve((point.rhs - point.scores)[tight] - active.apply(tangent.image(stationarity)))
        change = active.adjoint(by_multiplier) + stationarity
        step = tangent.trusted_step(change)
        weights, dual = tangent.move(change, step)
        multipliers[tight] += step * by_multiplier
        clipped = np.where(rows.free, multipliers, np.maximum(multipliers, 0.0))
        point = replace(point, weights=weights, dual=dual, multipliers=clipped)
        if point.gap < best.gap:
            best = point
        tight = rows.free | (multipliers + (point.rhs - point.scores) / stiffness > 0)
        if best.gap <= tolerance or not np.isfinite(point.gap):
            break
    return best
