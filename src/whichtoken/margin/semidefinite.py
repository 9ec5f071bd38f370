"""The ends p = 1 (nuclear norm) and p = inf (spectral norm) of the Schatten norms, which are semidefinite programs.

Both have a pair of symmetric matrices of 2 d rows whose product vanishes at the solution: X, which is positive semidefinite,
and Z = [[I, -V], [-V^T, I]] / 2, which is so as long as no singular value of V exceeds one.

nuclear    min tr X / 2  subject to  A W >= b with W = X_12;    V = A^T mu
spectral   max rho       subject to  A W >= rho b with V = W;   X_12 = A^T mu, b.mu = 1

A primal-dual interior-point method with the scaling of Nesterov and Todd: P Z P = X turns a step into the linear map
H(E) = (P_11 E P_22 + P_12 E^T P_12) / 2 from dV to dX_12. Rows are of rank one, so A H A^T has products of two bilinear forms
as entries; and in the singular vectors of P_12 relative to P_11 and P_22, H couples only E_ij with E_ji, which inverts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from whichtoken.margin.cholesky import cholesky
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector, dual_exponent

ITERATIONS, PATIENCE = 60, 4
CONVERGED = 1e-9  # a tenth of the gap that is promised
TO_THE_BOUNDARY, FARTHEST = 0.98, 1e3  # of steps
REFINEMENTS = 1


def minimal_extreme_norm(rows: Constraints, start: Solution, p: float) -> Solution:
    """Minimal nuclear (p = 1) or spectral (p = inf) norm weights for unit rows, from the Euclidean solution."""
    with np.errstate(all="ignore"):  # a solve that breaks down returns its best pair, which is judged by its gap
        point = best = _nuclear_start(rows, start) if p == 1 else _spectral_start(rows, start)
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
    return Solution(best.weights.ravel(), best.multipliers)


@dataclass(frozen=True)
class _Point:
    rows: Constraints
    p: float
    X: Vector  # (2 d, 2 d)
    V: Vector  # (d, d)
    multipliers: Vector  # (m,)
    slack: Vector  # (m,), zero on equalities
    level: float  # the rho of the spectral problem; 1 in the nuclear one

    @property
    def corner(self) -> Vector:
        """X_12."""
        half = len(self.V)
        return self.X[:half, half:]

    @cached_property
    def z(self) -> Vector:
        return (np.eye(len(self.X)) - _symmetric(self.V)) / 2

    @property
    def weights(self) -> Vector:
        return self.corner if self.p == 1 else self.V

    @cached_property
    def combined(self) -> Vector:
        return self.rows.adjoint(self.multipliers).reshape(self.V.shape)

    @cached_property
    def scores(self) -> Vector:
        return self.rows.apply(self.weights.ravel())

    @property
    def degree(self) -> int:
        """Number of the products that vanish at the solution."""
        return len(self.X) + int(np.sum(~self.rows.free))

    @cached_property
    def complementarity(self) -> float:
        """Their mean."""
        products = float(np.sum(self.X * self.z) + self.multipliers @ self.slack)
        return products / self.degree

    @cached_property
    def gap(self) -> float:
        positive = self.rows.rhs > 0
        margin = np.min(self.scores[positive] / self.rows.rhs[positive]) / _schatten(self.weights, self.p)
        bound = _schatten(self.combined, dual_exponent(self.p)) / (self.multipliers @ self.rows.rhs)
        return float(1 - margin / bound)


def _schatten(matrix: Vector, p: float) -> np.float64:
    values = np.linalg.svd(matrix, compute_uv=False)
    return np.float64(values.sum() if p == 1 else values.max())


def _symmetric(block: Vector) -> Vector:
    zero = np.zeros_like(block)
    return np.block([[zero, block], [block.T, zero]])


def _square(matrix: Vector) -> Vector:
    return matrix.T @ matrix


def _lifted(corner: Vector) -> Vector:
    """A positive definite X with the given X_12."""
    left, values, right = np.linalg.svd(corner)
    raised = values + values.mean()
    return np.block([[(left * raised) @ left.T, corner], [corner.T, (right.T * raised) @ right]])


def _inside(rows: Constraints, start: Solution) -> tuple[Vector, Vector]:
    """Positive multipliers, and the weights as a matrix."""
    inequality = ~rows.free
    raised = start.multipliers + max(0.1 * start.multipliers[inequality].mean(), 1e-12)
    shape = rows.left.shape[1], rows.right.shape[1]
    return np.where(inequality, raised, start.multipliers), start.weights.reshape(shape)


def _nuclear_start(rows: Constraints, start: Solution) -> _Point:
    multipliers, weights = _inside(rows, start)
    combined = rows.adjoint(multipliers).reshape(weights.shape)
    multipliers, combined = (x * 0.9 / _schatten(combined, np.inf) for x in (multipliers, combined))
    scores, positive = rows.apply(start.weights), rows.rhs > 0
    lowest = np.min(scores[positive] / rows.rhs[positive])
    factor = 2 / lowest if lowest > 0 else 1.0
    slack = np.maximum(factor * scores - rows.rhs, 0.1)
    return _Point(rows, 1, _lifted(factor * weights), combined, multipliers, np.where(rows.free, 0.0, slack), 1.0)


def _spectral_start(rows: Constraints, start: Solution) -> _Point:
    multipliers, weights = _inside(rows, start)
    multipliers = multipliers / (rows.rhs @ multipliers)
    weights = weights * 0.9 / _schatten(weights, np.inf)
    scores, positive = rows.apply(weights.ravel()), rows.rhs > 0
    level = max(float(np.min(scores[positive] / rows.rhs[positive])), 0.0) / 2
    slack = np.maximum(scores - level * rows.rhs, 0.1 * level)
    combined = rows.adjoint(multipliers).reshape(weights.shape)
    return _Point(rows, np.inf, _lifted(combined), weights, multipliers, np.where(rows.free, 0.0, slack), level)


@dataclass(frozen=True)
class _Scaling:
    """G with G^-1 X G^-T = G^T Z G = diag(values), and P = G G^T."""

    G: Vector
    inverse: Vector
    values: Vector

    @cached_property
    def metric(self) -> Vector:
        return self.G @ self.G.T

    def right_hand_side(self, target: float, cross: Vector | float) -> Vector:
        """The scaled dX + dZ that brings X Z to the target, given a second-order term."""
        values = self.values
        missing = np.diag(target - values**2) - cross
        return 2 * missing / (values[:, None] + values)

    def longest_step(self, scaled: Vector) -> float:
        root = 1 / np.sqrt(self.values)
        return 1 / max(float(-np.linalg.eigvalsh(scaled * root * root[:, None])[0]), 1 / FARTHEST)


def _scaling(X: Vector, Z: Vector) -> _Scaling:
    lower_x, lower_z = np.linalg.cholesky(X), np.linalg.cholesky(Z)
    left, values, right = np.linalg.svd(lower_z.T @ lower_x)
    root = np.sqrt(values)
    return _Scaling((lower_x @ right.T) / root, (lower_z @ left).T / root[:, None], values)


class _System:
    """Newton's equations. A direct solution loses digits as X and Z become singular; its own residuals bring them back."""

    def __init__(self, point: _Point, scaling: _Scaling) -> None:
        self.point, half = point, len(point.V)
        metric = scaling.metric
        self.blocks = metric[:half, :half], metric[:half, half:], metric[half:, half:]
        self.divisor = np.where(point.rows.free, 1.0, point.multipliers)
        self.stiffness = point.slack / self.divisor

    def forward(self, block: Vector) -> Vector:
        """H."""
        own, mixed, other = self.blocks
        return (own @ block @ other + mixed @ block.T @ mixed) / 2

    def newton(self, corner: Vector, products: Vector) -> tuple[Vector, Vector, Vector, float]:
        """Changes of V, mu, s and rho, given the part of dX_12 that does not depend on them and that of mu ds + s dmu."""
        raise NotImplementedError

    def slack_change(self, by_multiplier: Vector, products: Vector) -> Vector:
        changed = (products - self.point.slack * by_multiplier) / self.divisor
        return np.where(self.point.rows.free, 0.0, changed)


class _NuclearSystem(_System):
    """(A H A^T + diag(s / mu)) dmu = r."""

    def __init__(self, point: _Point, scaling: _Scaling) -> None:
        super().__init__(point, scaling)
        solve = cholesky(point.rows.product_gram(*self.blocks), 2 * self.stiffness)
        self.solve = lambda right: 2 * solve(right)

    def newton(self, corner: Vector, products: Vector) -> tuple[Vector, Vector, Vector, float]:
        point, rows = self.point, self.point.rows
        missing = rows.rhs + point.slack - point.scores - rows.apply(corner.ravel()) + products / self.divisor
        by_multiplier, residual = np.zeros(len(rows)), missing
        for _ in range(1 + REFINEMENTS):
            by_multiplier = by_multiplier + self.solve(residual)
            change = rows.adjoint(by_multiplier).reshape(corner.shape)
            residual = missing - rows.apply(self.forward(change).ravel()) - self.stiffness * by_multiplier
        return change, by_multiplier, self.slack_change(by_multiplier, products), 0.0


class _SpectralSystem(_System):
    """H dW - A^T dmu = R,  A dW + s / mu dmu - b drho = r,  b.dmu = 1 - b.mu."""

    def __init__(self, point: _Point, scaling: _Scaling) -> None:
        super().__init__(point, scaling)
        rows, (own, mixed, other) = point.rows, self.blocks
        left, right = np.linalg.cholesky(own), np.linalg.cholesky(other)
        relative = solve_triangular(right, solve_triangular(left, mixed, lower=True).T, lower=True).T
        # 1 - cosine^2 from P^-1, where it is large instead of a difference of almost equal numbers
        inverse_sines, u = np.linalg.eigh(_square(scaling.inverse[:, : len(own)] @ left))
        sines, u = np.minimum(1 / inverse_sines[::-1], 1.0), u[:, ::-1]
        v, triangle = np.linalg.qr(relative.T @ u)
        v = np.where(np.diagonal(triangle) < 0, -v, v)
        self.left = u.T @ solve_triangular(left, np.eye(len(own)), lower=True)
        self.right = v.T @ solve_triangular(right, np.eye(len(own)), lower=True)
        cosines = np.sqrt(1 - sines)
        self.own = 2 / (np.add.outer(sines, sines) - np.outer(sines, sines))
        self.swapped = -np.outer(cosines, cosines) * self.own
        turned = replace(rows, left=rows.left @ self.left.T, right=rows.right @ self.right.T)
        self.solve = cholesky(turned.gram(self.own.ravel(), self.swapped.ravel()), self.stiffness)
        self.by_level = self.solve(rows.rhs)

    def inverse(self, block: Vector) -> Vector:
        """H^-1."""
        turned = self.left @ block @ self.right.T
        result: Vector = self.left.T @ (self.own * turned + self.swapped * turned.T) @ self.right
        return result

    def newton(self, corner: Vector, products: Vector) -> tuple[Vector, Vector, Vector, float]:
        point, rows = self.point, self.point.rows
        blocks = point.combined - point.corner - corner
        missing = point.slack + point.level * rows.rhs - point.scores + products / self.divisor
        total = 1 - float(rows.rhs @ point.multipliers)
        by_weights, by_multiplier, by_level = self._direct(blocks, missing, total)
        for _ in range(REFINEMENTS):
            more = self._direct(
                blocks - self.forward(by_weights) + rows.adjoint(by_multiplier).reshape(corner.shape),
                missing - rows.apply(by_weights.ravel()) - self.stiffness * by_multiplier + rows.rhs * by_level,
                total - float(rows.rhs @ by_multiplier),
            )
            by_weights, by_multiplier, by_level = by_weights + more[0], by_multiplier + more[1], by_level + more[2]
        return by_weights, by_multiplier, self.slack_change(by_multiplier, products), by_level

    def _direct(self, block: Vector, row: Vector, rest: float) -> tuple[Vector, Vector, float]:
        rows = self.point.rows
        by_multiplier = self.solve(row - rows.apply(self.inverse(block).ravel()))
        by_level = (rest - float(rows.rhs @ by_multiplier)) / float(rows.rhs @ self.by_level)
        by_multiplier = by_multiplier + by_level * self.by_level
        return self.inverse(block + rows.adjoint(by_multiplier).reshape(block.shape)), by_multiplier, by_level


@dataclass(frozen=True)
class _Step:
    """A Newton direction, and how far each side can go along it."""

    scaled_x: Vector
    scaled_z: Vector
    by_v: Vector
    by_multiplier: Vector
    by_slack: Vector
    by_level: float
    longest: tuple[float, float]  # on the side of X, on that of Z


def _advance(point: _Point) -> _Point:
    """One step of Mehrotra's predictor-corrector method."""
    scaling = _scaling(point.X, point.z)
    system = _NuclearSystem(point, scaling) if point.p == 1 else _SpectralSystem(point, scaling)
    guess = _newton(point, scaling, system, 0.0, 0.0, 0.0)
    on_X, on_Z = (min(1.0, step) for step in guess.longest)
    values = np.diag(scaling.values)
    left_over = np.sum((values + on_X * guess.scaled_x) * (values + on_Z * guess.scaled_z))
    on_multiplier, on_slack = (on_Z, on_X) if point.p == 1 else (on_X, on_Z)
    products = (point.multipliers + on_multiplier * guess.by_multiplier) * (point.slack + on_slack * guess.by_slack)
    ratio = float(left_over + np.sum(products)) / (point.complementarity * point.degree)
    cross = guess.scaled_x @ guess.scaled_z
    step = _newton(
        point,
        scaling,
        system,
        point.complementarity * min(1.0, max(ratio, 0.0)) ** 3,
        (cross + cross.T) / 2,
        guess.by_multiplier * guess.by_slack,
    )
    on_X, on_Z = (min(1.0, TO_THE_BOUNDARY * longest) for longest in step.longest)
    on_multiplier, on_slack = (on_Z, on_X) if point.p == 1 else (on_X, on_Z)
    X = point.X + on_X * (scaling.G @ step.scaled_x @ scaling.G.T)
    return replace(
        point,
        X=(X + X.T) / 2,
        V=point.V + on_Z * step.by_v,
        multipliers=point.multipliers + on_multiplier * step.by_multiplier,
        slack=point.slack + on_slack * step.by_slack,
        level=point.level + on_Z * step.by_level,
    )


def _newton(
    point: _Point, scaling: _Scaling, system: _System, target: float, cross: Vector | float, row_cross: Vector | float
) -> _Step:
    """The direction that brings X Z and mu s to the target, given the second-order terms of both."""
    half, inequality = len(point.V), ~point.rows.free
    scaled = scaling.right_hand_side(target, cross)
    corner = scaling.G[:half] @ scaled @ scaling.G[half:].T
    products = np.where(inequality, target - point.multipliers * point.slack - row_cross, 0.0)
    by_v, by_multiplier, by_slack, by_level = system.newton(corner, products)
    scaled_z = -scaling.G.T @ _symmetric(by_v) @ scaling.G / 2
    scaled_x = scaled - scaled_z
    multiplier_step = _longest_step(by_multiplier[inequality], point.multipliers[inequality])
    slack_step = _longest_step(by_slack[inequality], point.slack[inequality])
    with_X, with_Z = (slack_step, multiplier_step) if point.p == 1 else (multiplier_step, slack_step)
    longest = min(scaling.longest_step(scaled_x), with_X), min(scaling.longest_step(scaled_z), with_Z)
    return _Step(scaled_x, scaled_z, by_v, by_multiplier, by_slack, by_level, longest)


def _longest_step(change: Vector, values: Vector) -> float:
    """The step at which one of the positive values vanishes; never infinite."""
    return 1 / max(float(np.max(-change / values)), 1 / FARTHEST)
