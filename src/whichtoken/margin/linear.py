"""The ends of the entrywise norms, p = 1 and p = inf, which are linear programs: pairs of `margin.extreme` for entries.

Where the solution is unique, which entries of W and which multipliers vanish is clear long before they do, and linear
equations give the rest to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linprog

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.extreme import duality_gap, longest_step, minimal_extreme_norm
from whichtoken.margin.geometry import EntrywiseNorm
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector

OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class EntryPair:
    """Y = x_+ - x_- with positive x, whose partners are the distances 1 - V and 1 + V."""

    x: Vector  # (2, columns)
    v: Vector  # (columns,)

    @property
    def y(self) -> Vector:
        difference: Vector = self.x[0] - self.x[1]
        return difference

    @cached_property
    def z(self) -> Vector:
        return np.stack([1 - self.v, 1 + self.v])

    @property
    def degree(self) -> int:
        return self.x.size

    @property
    def products(self) -> float:
        return float(np.sum(self.x * self.z))

    @cached_property
    def _slope(self) -> Vector:
        slope: Vector = (self.x / self.z).sum(axis=0)
        return slope

    def _missing(self, target: float, cross: Vector | float) -> Vector:
        missing: Vector = (target - self.x * self.z - cross) / self.z
        return missing

    def constant(self, target: float, cross: Vector | float) -> Vector:
        plus, minus = self._missing(target, cross)
        difference: Vector = plus - minus
        return difference

    def forward(self, change: Vector) -> Vector:
        return self._slope * change

    def inverse(self, change: Vector) -> Vector:
        return change / self._slope

    def gram(self, rows: Constraints) -> Vector:
        return rows.gram(self._slope)

    def inverse_gram(self, rows: Constraints) -> Vector:
        return rows.gram(1 / self._slope)

    def step(self, target: float, cross: Vector | float, by_v: Vector) -> EntryStep:
        by_z = np.stack([-by_v, by_v])
        return EntryStep(self, self._missing(target, cross) - self.x / self.z * by_z, by_z)


@dataclass(frozen=True)
class EntryStep:
    """Changes of x and of its partners."""

    pair: EntryPair
    by_x: Vector
    by_z: Vector

    @property
    def cross(self) -> Vector:
        return self.by_x * self.by_z

    @cached_property
    def longest(self) -> tuple[float, float]:
        return longest_step(self.by_x / self.pair.x), longest_step(self.by_z / self.pair.z)

    def left_over(self, on_y: float, on_v: float) -> float:
        return float(np.sum((self.pair.x + on_y * self.by_x) * (self.pair.z + on_v * self.by_z)))

    def moved(self, on_y: float, on_v: float) -> EntryPair:
        return EntryPair(self.pair.x + on_y * self.by_x, self.pair.v - on_v * self.by_z[0])


def entry_pair(y: Vector, v: Vector) -> EntryPair:
    """A pair with this Y and V, the second one with entries below one."""
    size = np.abs(y)
    raised = (size + size.mean()) / 2
    return EntryPair(np.stack([raised + y / 2, raised - y / 2]), v)


def minimal_entry_norm(rows: Constraints, start: Solution, p: float) -> Solution:
    """Minimal l_1 or l_inf norm weights for unit rows, from the Euclidean solution of the same rows."""
    norm = EntrywiseNorm(p)
    solution = minimal_extreme_norm(rows, start, norm, entry_pair)
    with np.errstate(all="ignore"):  # what broke down has an infinite gap
        settled = _settled(rows, solution, p)
        return min(settled, solution, key=lambda candidate: duality_gap(rows, norm, candidate))


def _settled(rows: Constraints, solution: Solution, p: float) -> Solution:
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


def by_simplex(rows: Constraints, p: float) -> list[Solution]:
    """Minimal l_1 or l_inf norm weights with multipliers from the optimal basis; empty if the program was not solved."""
    inequality, columns = ~rows.free, rows.columns
    cost, matrix, below, bounds = _smallest_sum(rows) if p == 1 else _largest_margin_in_a_box(rows)
    result = linprog(
        cost,
        matrix[inequality],
        below[inequality],
        matrix[rows.free],
        below[rows.free],
        bounds,
        "highs",
        options=OPTIONS,
    )
    if result.x is None:
        return []
    multipliers = np.zeros(len(rows))
    multipliers[inequality] = -result.ineqlin.marginals
    multipliers[rows.free] = -result.eqlin.marginals
    weights = result.x[:columns]
    return [Solution(weights - result.x[columns:] if p == 1 else weights, multipliers)]


def _smallest_sum(rows: Constraints) -> tuple[Vector, Vector, Vector, Vector]:
    """Minimise sum(x + y) over w = x - y with x, y >= 0 and A w >= b."""
    unknowns = 2 * rows.columns
    bounds = np.tile([0.0, np.inf], (unknowns, 1))
    return np.ones(unknowns), np.hstack([-rows.dense, rows.dense]), -rows.rhs, bounds


def _largest_margin_in_a_box(rows: Constraints) -> tuple[Vector, Vector, Vector, Vector]:
    """Maximise rho over -1 <= w <= 1 and A w >= rho b: bounds on unknowns are cheaper than rows |w| <= t."""
    matrix = np.hstack([-rows.dense, rows.rhs[:, None]])
    bounds = np.vstack([np.tile([-1.0, 1.0], (rows.columns, 1)), [0.0, np.inf]])
    return np.r_[np.zeros(rows.columns), -1.0], matrix, np.zeros(len(rows)), bounds
