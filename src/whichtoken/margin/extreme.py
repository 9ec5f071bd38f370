"""The ends p = 1 and p = inf, entrywise and Schatten, by one primal-dual interior-point method.

At both ends something is bounded, V with |V|_inf <= 1 (largest entry, or largest singular value), and something has the dual
norm, Y with |Y|_1; at the solution <V, Y> = |Y|_1.

p = 1      min |W|_1  subject to  A W >= b:                     Y = W,         V = A^T mu
p = inf    max rho    subject to  A W >= rho b, |W|_inf <= 1:   Y = A^T mu,    V = W        with b.mu = 1

A pair keeps V inside its ball and, for Y, positive numbers (`EntryPair`) or a positive definite matrix (`MatrixPair`) that are
complementary to the distance from its boundary. Linearized, dY = H dV + constant with an H that the pair can apply, invert and
put between the rows.

Entries: both ends are linear programs. Where the solution is unique, it is clear which entries of W and which multipliers vanish
long before they do, and linear equations give the rest to the last digit. The simplex method solves programs on which this fails.

Singular values: Z = [[I, -V], [-V^T, I]] / 2 is positive definite as long as the singular values of V are below one, and its
partner is a positive definite X with X_12 = Y. With the scaling of Nesterov and Todd, P Z P = X, the linear map is
H(E) = (P_11 E P_22 + P_12 E^T P_12) / 2. Rows are of rank one, so A H A^T has products of two bilinear forms as entries; and in
the singular vectors of P_12 relative to P_11 and P_22, H couples only E_ij with E_ji, which inverts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import linprog

from whichtoken.margin.certificate import OPTIMAL_GAP
from whichtoken.margin.constraints import Constraints, Solution, cholesky
from whichtoken.margin.geometry import EntrywiseNorm, Norm, SchattenNorm
from whichtoken.norms import Vector

ITERATIONS, PATIENCE = 60, 4
SPARE = 0.1  # share of the promised gap at which to stop, if that is not far below it
TO_THE_BOUNDARY, FARTHEST = 0.95, 1e3  # of steps; matrices stall from 0.99 on
CENTERING, CORRECTIONS = 0.03, 3  # share of the products that a step leaves; Newton directions after the first
FACES = 2e-1, 2e-2, 2e-3, 2e-4  # gaps at which rows are chosen anew
LOOSE = 0.01  # those with multipliers below so much of their slack, both over the largest at the first of these gaps
REFINED = 1e-5  # gap below which Newton's equations need their residuals
LANCZOS, EXHAUSTED = 25, 1e-12  # iterations; a next direction of this size, relative to the matrix, is rounding
OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def minimal_entry_norm(rows: Constraints, start: Solution, p: float) -> Solution:
    """Minimal l_1 or l_inf norm weights for unit rows, from the Euclidean solution of the same rows."""
    norm = EntrywiseNorm(p)
    solution = minimal_extreme_norm(rows, start, norm, entry_pair, SPARE * OPTIMAL_GAP)
    with np.errstate(all="ignore"):  # what broke down has an infinite gap
        settled = _vertex(rows, solution, p)
        return min(settled, solution, key=lambda candidate: duality_gap(rows, norm, candidate))


def _vertex(rows: Constraints, solution: Solution, p: float) -> Solution:
    """The vertex nearby: tight rows as equations for the entries that are neither zero (p = 1) nor at the bound (p = inf).

    If there are not as many of the ones as of the others, the solution is not unique and stays what it is.
    """
    weights, multipliers = (x / np.abs(x).max() for x in (solution.weights, solution.multipliers))
    combined = rows.adjoint(multipliers)
    combined = combined / np.abs(combined).max()
    scores, positive = rows.apply(weights), rows.rhs > 0
    level = float(np.min(scores[positive] / rows.rhs[positive]))
    slack = (scores - level * rows.rhs) / level
    tight = rows.free | (multipliers > slack)
    loose = np.abs(weights) > 1 - np.abs(combined) if p == 1 else 1 - np.abs(weights) > np.abs(combined)
    matrix = rows.subset(tight).dense[:, loose]
    demands = level * rows.rhs[tight]
    if p == 1:
        fixed, target, sums = np.zeros(rows.columns), demands, np.sign(combined[loose])
    else:
        fixed = np.where(loose, 0.0, np.sign(weights))
        matrix = np.hstack([matrix, -demands[:, None]])
        target, sums = -rows.subset(tight).apply(fixed), np.r_[np.zeros(int(loose.sum())), -1.0]
    if matrix.shape[0] != matrix.shape[1]:
        return solution
    try:
        entries, own = np.linalg.solve(matrix, target), np.linalg.solve(matrix.T, sums)
    except np.linalg.LinAlgError:
        return solution
    weights, multipliers = fixed, np.zeros(len(rows))
    weights[loose], multipliers[tight] = entries[: int(loose.sum())], own
    return Solution(weights, np.where(rows.free, multipliers, np.maximum(multipliers, 0.0)))


def simplex_solutions(rows: Constraints, p: float) -> list[Solution]:
    """Minimal l_1 or l_inf norm weights with multipliers from the optimal basis; empty if the program was not solved."""
    inequality, columns = ~rows.free, rows.columns
    if p == 1:
        # minimize sum(x + y) over w = x - y with x, y >= 0 and A w >= b
        cost, matrix, below = np.ones(2 * columns), np.hstack([-rows.dense, rows.dense]), -rows.rhs
        bounds = np.tile([0.0, np.inf], (2 * columns, 1))
    else:
        # maximize rho over -1 <= w <= 1 and A w >= rho b: bounds on unknowns are cheaper than rows |w| <= t
        cost, below = np.r_[np.zeros(columns), -1.0], np.zeros(len(rows))
        matrix = np.hstack([-rows.dense, rows.rhs[:, None]])
        bounds = np.vstack([np.tile([-1.0, 1.0], (columns, 1)), [0.0, np.inf]])
    upper, equal = (matrix[inequality], below[inequality]), (matrix[rows.free], below[rows.free])
    result = linprog(cost, *upper, *equal, bounds, "highs", options=OPTIONS)
    if result.x is None:
        return []
    multipliers = np.zeros(len(rows))
    multipliers[inequality] = -result.ineqlin.marginals
    multipliers[rows.free] = -result.eqlin.marginals
    weights = result.x[:columns]
    return [Solution(weights - result.x[columns:] if p == 1 else weights, multipliers)]


def minimal_matrix_norm(rows: Constraints, start: Solution, p: float, gap: float = OPTIMAL_GAP) -> Solution:
    """Minimal nuclear (p = 1) or spectral (p = inf) norm weights for unit rows, from the Euclidean solution."""
    shape = rows.left.shape[1], rows.right.shape[1]
    return minimal_extreme_norm(rows, start, SchattenNorm(p, shape), matrix_pair, max(SPARE * gap, gap - OPTIMAL_GAP))


def minimal_extreme_norm(
    rows: Constraints, start: Solution, norm: Norm, make_pair: Callable[[Vector, Vector], Pair], gap: float
) -> Solution:
    """Minimal norm weights for unit rows, p = 1 or p = inf, from the Euclidean solution.

    `make_pair` puts any Y and a V inside the ball into a pair. Rows that are clearly not tight are left out; at each of `FACES`
    all are looked at again, and at the end, when all are used from the last of these points, or from the first, if need be.
    """
    with np.errstate(all="ignore"):  # a solve that breaks down returns its best pair, which is judged by its gap
        first = whole = _starting_point(rows, start, norm, make_pair)
        likely, scale = np.ones(len(rows), dtype=bool), 0.0
        for goal in FACES:
            whole = whole.follow_rows(_follow(whole.subset(likely), goal), likely)
            scale = scale or whole.multipliers.max() / whole.slack.max()
            # a row without a demand stays: no scaling of the weights would mend it
            ratios = np.where(rows.rhs > 0, whole.multipliers / whole.slack, np.inf)
            likely = ratios >= min(LOOSE * scale, ratios[rows.rhs > 0].max())
        best, width = start, np.inf
        for begin, kept in ((whole, likely), (whole, likely | True), (first, likely | True)):
            point, multipliers = _follow(begin.subset(kept), gap), np.zeros(len(rows))
            multipliers[kept] = point.multipliers
            solution = Solution(point.weights, multipliers)
            if (reached := duality_gap(rows, norm, solution)) < width:
                best, width = solution, reached
            if width <= gap:
                break
    return best


def _follow(point: _Point, gap: float) -> _Point:
    """The first point with this gap, or the best one that was met."""
    best, since_best = point, 0
    for _ in range(ITERATIONS):
        if best.gap <= gap or since_best > PATIENCE:
            break
        try:
            point = _advance(point)
        except np.linalg.LinAlgError:
            break
        since_best += 1
        if point.gap < best.gap:
            best, since_best = point, 0
    return best


def duality_gap(rows: Constraints, norm: Norm, solution: Solution) -> float:
    """Relative gap of a pair of candidates, infinite for one that broke down."""
    scores, combined = rows.apply(solution.weights), rows.adjoint(solution.multipliers)
    positive = rows.rhs > 0
    margin = np.min(scores[positive] / rows.rhs[positive]) / np.float64(norm.of(solution.weights))
    gap = float(1 - margin * (solution.multipliers @ rows.rhs) / norm.dual().of(combined))
    return gap if np.isfinite(gap) else np.inf


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
        return duality_gap(self.rows, self.norm, Solution(self.weights, self.multipliers))

    def subset(self, kept: NDArray[np.bool_]) -> _Point:
        """The same point with fewer rows."""
        return replace(self, rows=self.rows.subset(kept), multipliers=self.multipliers[kept], slack=self.slack[kept])

    def follow_rows(self, point: _Point, kept: NDArray[np.bool_]) -> _Point:
        """All rows at a point of the kept ones; the others get the slack they have there, and its central multipliers."""
        slack = self.rows.apply(point.weights) - point.level * self.rows.rhs
        slack = np.maximum(slack, point.complementarity / point.multipliers.max())
        multipliers = point.complementarity / slack
        multipliers[kept], slack[kept] = point.multipliers, point.slack
        return replace(self, pair=point.pair, multipliers=multipliers, slack=slack, level=point.level)


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
        self.refinements = int(point.gap < REFINED)
        self.divisor = np.where(point.rows.free, 1.0, point.multipliers)
        self.stiffness = point.slack / self.divisor
        gram = point.pair.gram if point.norm.p == 1 else point.pair.inverse_gram
        self.solve = cholesky(gram(point.rows), self.stiffness)

    def newton(self, constant: Vector, products: Vector) -> tuple[Vector, Vector, Vector, float]:
        """Changes of V, mu, s and rho, given those parts of dY and of mu ds + s dmu that do not depend on them."""
        changes = self._step_to_smallest_norm if self.point.norm.p == 1 else self._step_to_largest_margin
        by_v, by_multiplier, by_level = changes(constant, products / self.divisor)
        by_slack = (products - self.point.slack * by_multiplier) / self.divisor
        return by_v, by_multiplier, np.where(self.point.rows.free, 0.0, by_slack), by_level

    def _step_to_smallest_norm(self, constant: Vector, added: Vector) -> tuple[Vector, Vector, float]:
        """(A H A^T + diag(s / mu)) dmu = r,  dV = A^T (mu + dmu) - V."""
        point, rows = self.point, self.point.rows
        lag = point.combined - point.pair.v  # of rows that were left out
        missing = rows.rhs + point.slack - point.scores - rows.apply(constant + point.pair.forward(lag)) + added
        by_multiplier = self.solve(missing)
        for _ in range(self.refinements):
            image = rows.apply(point.pair.forward(rows.adjoint(by_multiplier)))
            by_multiplier = by_multiplier + self.solve(missing - image - self.stiffness * by_multiplier)
        return rows.adjoint(by_multiplier) + lag, by_multiplier, 0.0

    def _step_to_largest_margin(self, constant: Vector, added: Vector) -> tuple[Vector, Vector, float]:
        """H dV - A^T dmu = R,  A dV + s / mu dmu - b drho = r,  b.dmu = 1 - b.mu."""
        point, rows = self.point, self.point.rows
        stationarity = point.combined - point.pair.y - constant
        missing = point.slack + point.level * rows.rhs - point.scores + added
        total = 1 - float(rows.rhs @ point.multipliers)
        by_v, by_multiplier, by_level = self._direct(stationarity, missing, total)
        for _ in range(self.refinements):
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
    """A Newton direction."""

    point: _Point
    pair: EntryStep | MatrixStep
    by_multiplier: Vector
    by_slack: Vector
    by_level: float

    @cached_property
    def lengths(self) -> tuple[float, float]:
        """How far to go along it, on the side of Y and on that of V: not quite to the boundary."""
        point, inequality = self.point, ~self.point.rows.free
        multiplier_step = longest_step(self.by_multiplier[inequality] / point.multipliers[inequality])
        slack_step = longest_step(self.by_slack[inequality] / point.slack[inequality])
        with_y, with_v = (slack_step, multiplier_step) if point.norm.p == 1 else (multiplier_step, slack_step)
        on_y, on_v = self.pair.longest
        return min(1.0, TO_THE_BOUNDARY * min(on_y, with_y)), min(1.0, TO_THE_BOUNDARY * min(on_v, with_v))


def _advance(point: _Point) -> _Point:
    """One step of a predictor-corrector method whose corrections are repeated as long as the step gets longer."""
    system, target = _System(point), CENTERING * point.complementarity
    step, reached = _newton(point, system, target, 0.0, 0.0), 0.0
    for _ in range(CORRECTIONS):
        corrected = _newton(point, system, target, step.pair.cross, step.by_multiplier * step.by_slack)
        if not sum(corrected.lengths) > reached:
            break
        step, reached = corrected, sum(corrected.lengths)
    on_y, on_v = step.lengths
    multipliers, slack = _move_rows(point, step, on_y, on_v)
    pair, level = step.pair.move(on_y, on_v), point.level + on_v * step.by_level
    return replace(point, pair=pair, multipliers=multipliers, slack=slack, level=level)


def _move_rows(point: _Point, step: _Step, on_y: float, on_v: float) -> tuple[Vector, Vector]:
    """mu and s; mu moves with V for p = 1, with Y for p = inf."""
    on_multiplier, on_slack = (on_v, on_y) if point.norm.p == 1 else (on_y, on_v)
    return point.multipliers + on_multiplier * step.by_multiplier, point.slack + on_slack * step.by_slack


def _newton(point: _Point, system: _System, target: float, cross: Vector | float, row_cross: Vector | float) -> _Step:
    """The direction that brings all products to the target, given their second-order terms."""
    inequality = ~point.rows.free
    products = np.where(inequality, target - point.multipliers * point.slack - row_cross, 0.0)
    missing = point.pair.product_gap(target, cross)
    by_v, by_multiplier, by_slack, by_level = system.newton(point.pair.constant(missing), products)
    return _Step(point, point.pair.step(missing, by_v), by_multiplier, by_slack, by_level)


def longest_step(relative_change: Vector) -> float:
    """The step at which one of the positive values vanishes; never infinite."""
    return 1 / max(float(np.max(-relative_change)), 1 / FARTHEST)


@dataclass(frozen=True)
class EntryPair:
    """Y = x_+ - x_- with positive x, whose partners are the distances 1 - V and 1 + V; Y and V are flat.

    The products of partners vanish at the solution.
    """

    x: Vector  # (2, columns)
    v: Vector  # (columns,)

    @property
    def y(self) -> Vector:
        return np.asarray(self.x[0] - self.x[1])

    @cached_property
    def z(self) -> Vector:
        return np.stack([1 - self.v, 1 + self.v])

    @property
    def degree(self) -> int:
        """Number of the products."""
        return self.x.size

    @property
    def products(self) -> float:
        return float(np.sum(self.x * self.z))

    @cached_property
    def _slope(self) -> Vector:
        return np.asarray((self.x / self.z).sum(axis=0))

    def product_gap(self, target: float, cross: Vector | float) -> Vector:
        """The change of x that brings the products to the target if their partners stay."""
        return np.asarray((target - self.x * self.z - cross) / self.z)

    def constant(self, missing: Vector) -> Vector:
        """The part of dY that does not depend on dV."""
        return np.asarray(missing[0] - missing[1])

    def forward(self, change: Vector) -> Vector:
        """H applied to a change of V."""
        return self._slope * change

    def inverse(self, change: Vector) -> Vector:
        return change / self._slope

    def gram(self, rows: Constraints) -> Vector:
        """A H A^T."""
        return rows.gram(self._slope)

    def inverse_gram(self, rows: Constraints) -> Vector:
        """A H^-1 A^T."""
        return rows.gram(1 / self._slope)

    def step(self, missing: Vector, by_v: Vector) -> EntryStep:
        """The direction of both sides that belongs to a change of V."""
        by_z = np.stack([-by_v, by_v])
        return EntryStep(self, missing - self.x / self.z * by_z, by_z)


@dataclass(frozen=True)
class EntryStep:
    """Changes of x and of its partners."""

    pair: EntryPair
    by_x: Vector
    by_z: Vector

    @property
    def cross(self) -> Vector:
        """The second-order term of the products."""
        return self.by_x * self.by_z

    @cached_property
    def longest(self) -> tuple[float, float]:
        """Lengths at which Y and V meet the boundary."""
        return longest_step(self.by_x / self.pair.x), longest_step(self.by_z / self.pair.z)

    def move(self, on_y: float, on_v: float) -> EntryPair:
        return EntryPair(self.pair.x + on_y * self.by_x, self.pair.v - on_v * self.by_z[0])


def entry_pair(y: Vector, v: Vector) -> EntryPair:
    """A pair with this Y and V, the second one with entries below one."""
    size = np.abs(y)
    raised = (size + size.mean()) / 2
    return EntryPair(np.stack([raised + y / 2, raised - y / 2]), v)


@dataclass(frozen=True)
class MatrixPair:
    """X and V; square matrices V are flattened for the outside."""

    x: Vector  # (2 d, 2 d)
    bounded: Vector  # V, (d, d)

    @property
    def v(self) -> Vector:
        return self.bounded.ravel()

    @property
    def y(self) -> Vector:
        return self.x[: self._half, self._half :].ravel()

    @property
    def degree(self) -> int:
        return len(self.x)

    @property
    def products(self) -> float:
        """The trace of X Z."""
        return float(np.trace(self.x) / 2 - self.y @ self.v)

    def product_gap(self, target: float, cross: Vector | float) -> Vector:
        """The scaled dX + dZ that brings X Z to the target."""
        values = self._values
        return 2 * (np.diag(target - values**2) - cross) / np.add.outer(values, values)

    def constant(self, missing: Vector) -> Vector:
        root, half = self._scaling[0], self._half
        return (root[:half] @ missing @ root[half:].T).ravel()

    def forward(self, change: Vector) -> Vector:
        own, mixed, other = self._blocks
        matrix = change.reshape(own.shape)
        return ((own @ matrix @ other + mixed @ matrix.T @ mixed) / 2).ravel()

    def inverse(self, change: Vector) -> Vector:
        left, right, own, swapped = self._inverse_coordinates
        matrix = left @ change.reshape(own.shape) @ right.T
        return np.asarray(left.T @ (own * matrix + swapped * matrix.T) @ right).ravel()

    def gram(self, rows: Constraints) -> Vector:
        gram = rows.product_gram(*self._blocks)
        gram /= 2
        return gram

    def inverse_gram(self, rows: Constraints) -> Vector:
        left, right, own, swapped = self._inverse_coordinates
        turned = replace(rows, left=rows.left @ left.T, right=rows.right @ right.T, tokens=None)
        return turned.gram(own.ravel(), swapped.ravel())

    def step(self, missing: Vector, by_v: Vector) -> MatrixStep:
        change, (root, _, values), half = by_v.reshape(self.bounded.shape), self._scaling, self._half
        corner = root[:half].T @ change @ root[half:]
        scaled_z = (corner + corner.T) / -2
        return MatrixStep(self, missing - scaled_z, scaled_z, values, change)

    def move(self, scaled_x: Vector, by_v: Vector) -> MatrixPair:
        """With X changed by G scaled_x G^T."""
        x = self.x + self._scaling[0] @ scaled_x @ self._scaling[0].T
        return MatrixPair((x + x.T) / 2, self.bounded + by_v)

    @property
    def _half(self) -> int:
        return len(self.bounded)

    @cached_property
    def _scaling(self) -> tuple[Vector, Vector, Vector]:
        """G, G^-1 and the eigenvalues of G^-1 X G^-T = G^T Z G, which is diagonal; P = G G^T."""
        z = (np.eye(len(self.x)) - _symmetric(self.bounded)) / 2
        lower_x, lower_z = np.linalg.cholesky(self.x), np.linalg.cholesky(z)
        product = lower_z.T @ lower_x
        squares, left = np.linalg.eigh(
            product @ product.T
        )  # near the central path all are almost equal, so squares lose nothing
        values, right = np.sqrt(squares), product.T @ left
        return lower_x @ right / values**1.5, (lower_z @ left).T / np.sqrt(values)[:, None], values

    @property
    def _values(self) -> Vector:
        return self._scaling[2]

    @cached_property
    def _blocks(self) -> tuple[Vector, Vector, Vector]:
        """P_11, P_12, P_22."""
        half, root = self._half, self._scaling[0]
        metric = root @ root.T
        return metric[:half, :half], metric[:half, half:], metric[half:, half:]

    @cached_property
    def _inverse_coordinates(self) -> tuple[Vector, Vector, Vector, Vector]:
        """Coordinates for rows and columns in which H^-1 multiplies an entry by a factor and adds another times its mirror."""
        own, mixed, other = self._blocks
        left, right = np.linalg.cholesky(own), np.linalg.cholesky(other)
        relative = solve_triangular(right, solve_triangular(left, mixed, lower=True).T, lower=True).T
        # 1 - cosine^2 from P^-1, where it is large instead of a difference of almost equal numbers
        across = self._scaling[1][:, : self._half] @ left
        inverse_sines, u = np.linalg.eigh(across.T @ across)
        sines, u = np.minimum(1 / inverse_sines[::-1], 1.0), u[:, ::-1]
        v, triangle = np.linalg.qr(relative.T @ u)
        v = np.where(np.diagonal(triangle) < 0, -v, v)
        cosines = np.sqrt(1 - sines)
        factor = 2 / (np.add.outer(sines, sines) - np.outer(sines, sines))
        identity = np.eye(self._half)
        return (
            u.T @ solve_triangular(left, identity, lower=True),
            v.T @ solve_triangular(right, identity, lower=True),
            factor,
            -np.outer(cosines, cosines) * factor,
        )


@dataclass(frozen=True)
class MatrixStep:
    """dX and dZ in the coordinates where X and Z are the same diagonal matrix."""

    pair: MatrixPair
    scaled_x: Vector
    scaled_z: Vector
    values: Vector
    by_v: Vector

    @property
    def cross(self) -> Vector:
        product = self.scaled_x @ self.scaled_z
        return (product + product.T) / 2

    @cached_property
    def longest(self) -> tuple[float, float]:
        root = 1 / np.sqrt(self.values)
        on_y, on_v = (longest_step(lowest_eigenvalue(scaled, root)) for scaled in (self.scaled_x, self.scaled_z))
        return on_y, on_v

    def move(self, on_y: float, on_v: float) -> MatrixPair:
        return self.pair.move(on_y * self.scaled_x, on_v * self.by_v)


@njit(cache=True, nogil=True)
def lowest_eigenvalue(matrix: NDArray[Any], root: NDArray[Any]) -> Any:
    """Of diag(root) M diag(root), from above, by the method of Lanczos: off by much less than a step keeps of the boundary."""
    size, steps = len(matrix), min(len(matrix), LANCZOS)
    tridiagonal = np.zeros((steps, steps))
    before, vector = np.zeros(size), np.where(np.arange(size) % 3 == 0, 1.0, -1.0) / math.sqrt(size)
    for k in range(steps):
        image = root * np.dot(matrix, root * vector)
        tridiagonal[k, k] = np.dot(image, vector)
        if k + 1 == steps:
            break
        image -= tridiagonal[k, k] * vector + tridiagonal[k - 1, k] * before
        length = math.sqrt(np.dot(image, image))
        if length <= EXHAUSTED * np.abs(tridiagonal).max():
            steps = k + 1
            break
        tridiagonal[k, k + 1] = tridiagonal[k + 1, k] = length
        before, vector = vector, image / length
    return np.linalg.eigvalsh(np.ascontiguousarray(tridiagonal[:steps, :steps]))[0]


def matrix_pair(y: Vector, v: Vector) -> MatrixPair:
    """A pair with this Y and V, both flattened square matrices, the second one of spectral norm below one."""
    size = round(y.size**0.5)
    left, values, right = np.linalg.svd(y.reshape(size, size))
    raised = values + values.mean()
    above, beside = (left * raised) @ left.T, (right.T * raised) @ right
    corner = y.reshape(size, size)
    return MatrixPair(np.block([[above, corner], [corner.T, beside]]), v.reshape(size, size))


def _symmetric(block: Vector) -> Vector:
    size = len(block)
    matrix = np.zeros((2 * size, 2 * size))
    matrix[:size, size:], matrix[size:, :size] = block, block.T
    return matrix


Pair = EntryPair | MatrixPair
