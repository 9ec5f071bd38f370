"""The ends p = 1 and p = inf, entrywise and Schatten, by one primal-dual interior-point method.

At both ends something is bounded, V with |V|_inf <= 1 (largest entry, or largest singular value), and something has the dual
norm, Y with |Y|_1; at the solution <V, Y> = |Y|_1.

p = 1      min |W|_1  subject to  A W >= b:                     Y = W,         V = A^T mu
p = inf    max rho    subject to  A W >= rho b, |W|_inf <= 1:   Y = A^T mu,    V = W        with b.mu = 1

A `Pair` keeps V inside its ball and, for Y, positive numbers (`margin.linear`) or a positive definite matrix
(`margin.semidefinite`) that are complementary to the distance from its boundary. Linearised, dY = H dV + constant with an
H that the pair can apply, invert and put between the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from whichtoken.margin.cholesky import cholesky
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.geometry import Norm
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector

ITERATIONS, PATIENCE = 60, 4
CONVERGED = 1e-9  # a tenth of the gap that is promised
TO_THE_BOUNDARY, FARTHEST = 0.95, 1e3  # of steps; matrices stall from 0.99 on
REFINEMENTS = 1


class PairStep(Protocol):
    """A direction for both sides of a pair."""

    @property
    def longest(self) -> tuple[float, float]:
        """Lengths at which Y and V meet the boundary."""
        ...

    @property
    def cross(self) -> Vector:
        """The second-order term of the products along it."""
        ...

    def left_over(self, on_y: float, on_v: float) -> float:
        """Sum of the products after steps of these lengths."""
        ...

    def moved(self, on_y: float, on_v: float) -> Pair:
        """The pair after steps of these lengths."""
        ...


class Pair(Protocol):
    """V and Y, flattened, at a positive distance from where they are complementary."""

    @property
    def v(self) -> Vector: ...

    @property
    def y(self) -> Vector: ...

    @property
    def degree(self) -> int:
        """Number of the products that vanish at the solution."""
        ...

    @property
    def products(self) -> float:
        """Their sum."""
        ...

    def constant(self, target: float, cross: Vector | float) -> Vector:
        """The part of dY that does not depend on dV, if the products are to reach the target."""
        ...

    def forward(self, change: Vector) -> Vector:
        """H."""
        ...

    def inverse(self, change: Vector) -> Vector:
        """H^-1."""
        ...

    def gram(self, rows: Constraints) -> Vector:
        """A H A^T."""
        ...

    def inverse_gram(self, rows: Constraints) -> Vector:
        """A H^-1 A^T."""
        ...

    def step(self, target: float, cross: Vector | float, by_v: Vector) -> PairStep:
        """The direction that belongs to a change of V."""
        ...


def minimal_extreme_norm(
    rows: Constraints, start: Solution, norm: Norm, make_pair: Callable[[Vector, Vector], Pair]
) -> Solution:
    """Minimal norm weights for unit rows, p = 1 or p = inf, from the Euclidean solution.

    `make_pair` puts any Y and a V inside the ball into a pair.
    """
    with np.errstate(all="ignore"):  # a solve that breaks down returns its best pair, which is judged by its gap
        point = best = _starting_point(rows, start, norm, make_pair)
        since_best = 0
        for _ in range(ITERATIONS):
            if best.gap <= CONVERGED or since_best > PATIENCE:
                break
            try:
                point = _advance(point)
            except np.linalg.LinAlgError:
                break
            since_best += 1
            if point.gap < best.gap:
                best, since_best = point, 0
    return Solution(best.weights, best.multipliers)


@dataclass(frozen=True)
class _Point:
    rows: Constraints
    norm: Norm
    pair: Pair
    multipliers: Vector  # (m,)
    slack: Vector  # (m,), zero on equalities
    level: float  # rho; always 1 for p = 1

    @property
    def weights(self) -> Vector:
        return self.pair.y if self.norm.p == 1 else self.pair.v

    @cached_property
    def combined(self) -> Vector:
        return self.rows.adjoint(self.multipliers)

    @cached_property
    def scores(self) -> Vector:
        return self.rows.apply(self.weights)

    @property
    def degree(self) -> int:
        return self.pair.degree + int(np.sum(~self.rows.free))

    @cached_property
    def complementarity(self) -> float:
        """Mean of all products that vanish at the solution."""
        return (self.pair.products + float(self.multipliers @ self.slack)) / self.degree

    @cached_property
    def gap(self) -> float:
        return _gap(self.rows, self.norm, self.weights, self.multipliers, self.scores, self.combined)


def duality_gap(rows: Constraints, norm: Norm, solution: Solution) -> float:
    """Relative gap of a pair of candidates, infinite for one that broke down."""
    scores, combined = rows.apply(solution.weights), rows.adjoint(solution.multipliers)
    return _gap(rows, norm, solution.weights, solution.multipliers, scores, combined)


def _gap(
    rows: Constraints, norm: Norm, weights: Vector, multipliers: Vector, scores: Vector, combined: Vector
) -> float:
    positive = rows.rhs > 0
    margin = np.min(scores[positive] / rows.rhs[positive]) / np.float64(norm.of(weights))
    gap = float(1 - margin * (multipliers @ rows.rhs) / norm.dual().of(combined))
    return gap if np.isfinite(gap) else np.inf


def _starting_point(
    rows: Constraints, start: Solution, norm: Norm, make_pair: Callable[[Vector, Vector], Pair]
) -> _Point:
    """Well inside everything: weights with room to all demands, multipliers that are positive everywhere."""
    inequality, positive = ~rows.free, rows.rhs > 0
    raised = start.multipliers + max(0.1 * start.multipliers[inequality].mean(), 1e-12)
    multipliers = np.where(inequality, raised, start.multipliers)
    scores, combined = rows.apply(start.weights), rows.adjoint(multipliers)
    lowest = float(np.min(scores[positive] / rows.rhs[positive]))
    if norm.p == 1:
        factor = 2 / lowest if lowest > 0 else 1.0
        slack = np.maximum(factor * scores - rows.rhs, 0.1)
        shrink = 0.9 / norm.dual().of(combined)
        pair, multipliers, level = make_pair(factor * start.weights, shrink * combined), shrink * multipliers, 1.0
    else:
        factor, total = 0.9 / norm.of(start.weights), float(rows.rhs @ multipliers)
        level = max(factor * lowest, 0.0) / 2
        slack = np.maximum(factor * scores - level * rows.rhs, 0.1 * level)
        pair, multipliers = make_pair(combined / total, factor * start.weights), multipliers / total
    return _Point(rows, norm, pair, multipliers, np.where(inequality, slack, 0.0), level)


class _System:
    """Newton's equations for V, mu and rho, with one Cholesky factor of the size of the rows.

    A direct solution loses digits as the pair approaches the boundary; its own residuals bring them back.
    """

    def __init__(self, point: _Point) -> None:
        self.point = point
        self.divisor = np.where(point.rows.free, 1.0, point.multipliers)
        self.stiffness = point.slack / self.divisor
        gram = point.pair.gram if point.norm.p == 1 else point.pair.inverse_gram
        self.solve = cholesky(gram(point.rows), self.stiffness)

    def newton(self, constant: Vector, products: Vector) -> tuple[Vector, Vector, Vector, float]:
        """Changes of V, mu, s and rho, given those parts of dY and of mu ds + s dmu that do not depend on them."""
        changes = self._smallest if self.point.norm.p == 1 else self._largest
        by_v, by_multiplier, by_level = changes(constant, products / self.divisor)
        by_slack = (products - self.point.slack * by_multiplier) / self.divisor
        return by_v, by_multiplier, np.where(self.point.rows.free, 0.0, by_slack), by_level

    def _smallest(self, constant: Vector, added: Vector) -> tuple[Vector, Vector, float]:
        """(A H A^T + diag(s / mu)) dmu = r,  dV = A^T dmu."""
        point, rows = self.point, self.point.rows
        missing = rows.rhs + point.slack - point.scores - rows.apply(constant) + added
        by_multiplier = self.solve(missing)
        for _ in range(REFINEMENTS):
            image = rows.apply(point.pair.forward(rows.adjoint(by_multiplier)))
            by_multiplier = by_multiplier + self.solve(missing - image - self.stiffness * by_multiplier)
        return rows.adjoint(by_multiplier), by_multiplier, 0.0

    def _largest(self, constant: Vector, added: Vector) -> tuple[Vector, Vector, float]:
        """H dV - A^T dmu = R,  A dV + s / mu dmu - b drho = r,  b.dmu = 1 - b.mu."""
        point, rows = self.point, self.point.rows
        stationarity = point.combined - point.pair.y - constant
        missing = point.slack + point.level * rows.rhs - point.scores + added
        total = 1 - float(rows.rhs @ point.multipliers)
        by_v, by_multiplier, by_level = self._direct(stationarity, missing, total)
        for _ in range(REFINEMENTS):
            more = self._direct(
                stationarity - point.pair.forward(by_v) + rows.adjoint(by_multiplier),
                missing - rows.apply(by_v) - self.stiffness * by_multiplier + rows.rhs * by_level,
                total - float(rows.rhs @ by_multiplier),
            )
            by_v, by_multiplier, by_level = by_v + more[0], by_multiplier + more[1], by_level + more[2]
        return by_v, by_multiplier, by_level

    def _direct(self, stationarity: Vector, missing: Vector, total: float) -> tuple[Vector, Vector, float]:
        rows, inverse = self.point.rows, self.point.pair.inverse
        by_multiplier = self.solve(missing - rows.apply(inverse(stationarity)))
        by_level = (total - float(rows.rhs @ by_multiplier)) / float(rows.rhs @ self._per_level)
        by_multiplier = by_multiplier + by_level * self._per_level
        return inverse(stationarity + rows.adjoint(by_multiplier)), by_multiplier, by_level

    @cached_property
    def _per_level(self) -> Vector:
        return self.solve(self.point.rows.rhs)


@dataclass(frozen=True)
class _Step:
    """A Newton direction, and how far each side can go along it."""

    pair: PairStep
    by_multiplier: Vector
    by_slack: Vector
    by_level: float
    longest: tuple[float, float]  # on the side of Y, on that of V


def _advance(point: _Point) -> _Point:
    """One step of Mehrotra's predictor-corrector method."""
    system = _System(point)
    guess = _newton(point, system, 0.0, 0.0, 0.0)
    on_y, on_v = (min(1.0, step) for step in guess.longest)
    multipliers, slack = _rows_moved(point, guess, on_y, on_v)
    left_over = guess.pair.left_over(on_y, on_v) + float(multipliers @ slack)
    ratio = min(1.0, max(left_over / (point.complementarity * point.degree), 0.0))
    target = point.complementarity * ratio**3
    step = _newton(point, system, target, guess.pair.cross, guess.by_multiplier * guess.by_slack)
    on_y, on_v = (min(1.0, TO_THE_BOUNDARY * longest) for longest in step.longest)
    multipliers, slack = _rows_moved(point, step, on_y, on_v)
    return replace(
        point,
        pair=step.pair.moved(on_y, on_v),
        multipliers=multipliers,
        slack=slack,
        level=point.level + on_v * step.by_level,
    )


def _rows_moved(point: _Point, step: _Step, on_y: float, on_v: float) -> tuple[Vector, Vector]:
    """mu and s; mu moves with V for p = 1, with Y for p = inf."""
    on_multiplier, on_slack = (on_v, on_y) if point.norm.p == 1 else (on_y, on_v)
    return point.multipliers + on_multiplier * step.by_multiplier, point.slack + on_slack * step.by_slack


def _newton(point: _Point, system: _System, target: float, cross: Vector | float, row_cross: Vector | float) -> _Step:
    """The direction that brings all products to the target, given their second-order terms."""
    inequality = ~point.rows.free
    products = np.where(inequality, target - point.multipliers * point.slack - row_cross, 0.0)
    changes = system.newton(point.pair.constant(target, cross), products)
    by_v, by_multiplier, by_slack, by_level = changes
    pair = point.pair.step(target, cross, by_v)
    multiplier_step = longest_step(by_multiplier[inequality] / point.multipliers[inequality])
    slack_step = longest_step(by_slack[inequality] / point.slack[inequality])
    with_y, with_v = (slack_step, multiplier_step) if point.norm.p == 1 else (multiplier_step, slack_step)
    longest = min(pair.longest[0], with_y), min(pair.longest[1], with_v)
    return _Step(pair, by_multiplier, by_slack, by_level, longest)


def longest_step(relative_change: Vector) -> float:
    """The step at which one of the positive values vanishes; never infinite."""
    return 1 / max(float(np.max(-relative_change)), 1 / FARTHEST)
