"""The problem min |w|_p subject to A w >= b for 1 < p < inf, by a primal-dual interior-point method.

The optimality conditions are u = A^T mu, s = A w - b >= 0, mu >= 0, mu s = 0, and (w, u) on the curve u = sign(w) |w|^(p-1).
Newton's method, moving along that curve, needs one Cholesky factor of A diag(dw/du) A^T + diag(s/mu) a step. Near the
solution the tight rows are known, and Newton's method on them alone finishes: fewer equations, quadratic convergence,
multipliers that are exactly zero off the support.

Newton's method in w alone fails for p < 2, and in u alone for p > 2, because near zero the curve is infinitely steep in one
of the two. Here an entry moves along the tangent and returns to the curve in whichever coordinate is the flatter one, so that
the curvature is bounded for every p. `PowerCurve` is the curve of the entries, for the l_p norm; `SpectralCurve` that of the
singular values, for the Schatten norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.constraints import Constraints, Solution, cholesky
from whichtoken.margin.geometry import EntrywiseNorm, Norm, SchattenNorm
from whichtoken.norms import Vector, signed_power

ITERATIONS, FINISHING, SHORTENINGS = 60, 8, 3
CONVERGED, ROUGH = 1e-12, 1e-2
TRY_TO_FINISH = 1e-3  # gap below which the tight rows are worth guessing
STAGE = 2.4  # largest change of log(p - 1) in one go: 1.1 and 11 are reached from p = 2 directly
# Relative to the slope at the largest weight; further out, an entry is as good as frozen in one coordinate.
SLOPES = (1e-8, 1e12)
SMALLEST = 1e-30  # singular value, relative to the largest, below which slopes change no more
BISECTIONS = 60


def minimal_power_norm(rows: Constraints, start: Solution, norm: Norm) -> Solution:
    """Minimal norm weights for unit rows, 1 < p < inf, from the Euclidean solution of the same rows."""
    p = norm.p
    stages = max(int(np.ceil(abs(np.log(p - 1)) / STAGE)), 1)
    with np.errstate(all="ignore"):  # a solve that breaks down returns its best pair, which is judged by its gap
        for stage in range(1, stages + 1):
            exponent = 1 + (p - 1) ** (stage / stages)
            start = _solve(
                _starting_point(rows, make_curve(norm, exponent), start), CONVERGED if stage == stages else ROUGH
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
        both = multipliers + step * by_multiplier, slack + step * by_slack
        moved = replace(point, weights=weights, dual=dual, multipliers=both[0], slack=both[1])
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


@dataclass(frozen=True)
class PowerCurve:
    """The gradient of |w|_p^p / p as a curve, entry by entry."""

    p: float

    @property
    def norm(self) -> Norm:
        return EntrywiseNorm(self.p)

    def largest(self, vector: Vector) -> float:
        return float(np.abs(vector).max())

    def power(self, weights: Vector) -> float:
        """|w|_p^p, which is also <w, u> on the curve."""
        return float(np.sum(np.abs(weights) ** self.p))

    def dual(self, weights: Vector) -> Vector:
        return signed_power(weights, self.p - 1)

    def primal(self, dual: Vector) -> Vector:
        return signed_power(dual, 1 / (self.p - 1))

    def tangent(self, weights: Vector, dual: Vector) -> Tangent:
        magnitude = np.abs(weights)
        size = float(magnitude.max())
        slope = np.clip((self.p - 1) * np.maximum(magnitude / size, 1e-30) ** (self.p - 2), *SLOPES)
        return Tangent(self, weights, dual, slope <= 1, size ** (2 - self.p) / slope, size)


@dataclass(frozen=True)
class Tangent:
    """Tangents at the entries of a point on the curve."""

    curve: PowerCurve
    weights: Vector
    dual: Vector
    flat: NDArray[np.bool_]  # entries that return to the curve at their w, the others at their u
    inverse_slope: Vector  # dw / du
    size: float  # largest |w|

    def image(self, change: Vector) -> Vector:
        """Change of w along the tangent that belongs to a change of u."""
        return self.inverse_slope * change

    def gram(self, rows: Constraints) -> Vector:
        """<a_k, image of a_l>, (m, m)."""
        return rows.gram(self.inverse_slope)

    def trusted_step(self, change: Vector) -> float:
        """The step at which an entry has moved by the size of the curve: beyond, the tangent says nothing."""
        scale = np.where(self.flat, self.inverse_slope / self.size, self.size ** (1 - self.curve.p))
        return 1 / max(float(np.max(np.abs(change) * scale)), 1.0)

    def move(self, change: Vector, step: float) -> tuple[Vector, Vector]:
        """Weights and dual weights after a step of `change` in u along the tangent."""
        weights = self.weights + step * self.inverse_slope * change
        dual = self.dual + step * change
        return np.where(self.flat, weights, self.curve.primal(dual)), np.where(
            self.flat, self.curve.dual(weights), dual
        )


@dataclass(frozen=True)
class SpectralCurve:
    """The gradient of the sum of s^p / p over singular values s."""

    norm: SchattenNorm

    @property
    def p(self) -> float:
        return self.norm.p

    def largest(self, vector: Vector) -> float:
        return float(self.norm.singular_values(vector).max())

    def power(self, weights: Vector) -> float:
        """Sum of s^p, which is also <W, U> on the curve."""
        return float(np.sum(self.norm.singular_values(weights) ** self.p))

    def dual(self, weights: Vector) -> Vector:
        return self._raise(weights, self.p - 1)

    def primal(self, dual: Vector) -> Vector:
        return self._raise(dual, 1 / (self.p - 1))

    def _raise(self, vector: Vector, exponent: float) -> Vector:
        left, values, right = np.linalg.svd(vector.reshape(self.norm.shape), full_matrices=False)
        return np.asarray((left * values**exponent) @ right).ravel()

    def tangent(self, weights: Vector, dual: Vector) -> SpectralTangent:
        size = self.largest(weights)
        return self.at((weights / size + dual / size ** (self.p - 1)).reshape(self.norm.shape), size)

    def at(self, coordinate: Vector, size: float) -> SpectralTangent:
        """The point of the curve with W / size + U / size^(p-1) = coordinate."""
        left, values, right = np.linalg.svd(coordinate)
        return SpectralTangent(self, size, coordinate, left, right.T, *_split(values, self.p - 1))


def _split(values: Vector, exponent: float) -> tuple[Vector, Vector]:
    """s and u = s^exponent with s + u = values.

    The larger one, x + x^e = value with x between half the value and all of it, is found by bisection; the smaller one
    is a power of it, to full relative precision.
    """
    larger_is_s = (values <= 2) == (exponent >= 1)
    power = np.where(larger_is_s, exponent, 1 / exponent)
    low, high = values / 2, values
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = middle + middle**power > values
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(larger_is_s, low, low**power), np.where(larger_is_s, low**power, low)


@dataclass(frozen=True)
class SpectralTangent:
    """The tangent map at a point of the curve: in singular vectors it couples entry ij with ji only."""

    curve: SpectralCurve
    size: float
    coordinate: Vector
    left: Vector
    right: Vector
    weights: Vector  # singular values of W / size
    duals: Vector  # of U / size^(p-1)

    @cached_property
    def _factors(self) -> tuple[Vector, Vector]:
        """Of an entry itself and of its mirror image."""
        values = np.maximum(self.weights, SMALLEST)
        exponent = self.curve.p - 1
        slope = exponent * np.sqrt(np.outer(values, values)) ** (exponent - 1)  # where two values are almost the same
        powers = values**exponent
        distance = np.subtract.outer(values, values)
        close = np.abs(distance) <= 1e-6 * np.add.outer(values, values)
        rise = np.subtract.outer(powers, powers) / np.where(close, 1.0, distance)
        symmetric = 1 / np.clip(np.where(close, slope, rise), *SLOPES)
        turning = 1 / np.clip(np.add.outer(powers, powers) / np.add.outer(values, values), *SLOPES)
        scale = self.size ** (2 - self.curve.p) / 2
        return scale * (symmetric + turning), scale * (symmetric - turning)

    def image(self, change: Vector) -> Vector:
        """Change of W along the tangent that belongs to a change of U."""
        own, swapped = self._factors
        turned = self.left.T @ change.reshape(self.coordinate.shape) @ self.right
        return np.asarray(self.left @ (own * turned + swapped * turned.T) @ self.right.T).ravel()

    def gram(self, rows: Constraints) -> Vector:
        """<a_k, image of a_l>, (m, m)."""
        own, swapped = self._factors
        turned = replace(rows, left=rows.left @ self.left, right=rows.right @ self.right, tokens=None)
        return turned.gram(own.ravel(), swapped.ravel())

    def _along(self, change: Vector) -> Vector:
        """Change of the coordinate."""
        moved = self.image(change) / self.size + change / self.size ** (self.curve.p - 1)
        return np.asarray(moved).reshape(self.coordinate.shape)

    def trusted_step(self, change: Vector) -> float:
        """The step at which the coordinate has moved by the size of the curve: beyond, the tangent says nothing."""
        return 1 / max(float(np.linalg.norm(self._along(change), 2)), 1.0)

    def move(self, change: Vector, step: float) -> tuple[Vector, Vector]:
        """W and U after a step of `change` in U along the tangent."""
        moved = self.curve.at(self.coordinate + step * self._along(change), self.size)
        weights = (moved.left * moved.weights) @ moved.right.T * self.size
        dual = (moved.left * moved.duals) @ moved.right.T * self.size ** (self.curve.p - 1)
        return weights.ravel(), dual.ravel()


Curve = PowerCurve | SpectralCurve


def make_curve(norm: Norm, p: float) -> Curve:
    """The curve of a norm with another exponent."""
    return SpectralCurve(replace(norm, p=p)) if isinstance(norm, SchattenNorm) else PowerCurve(p)
