"""The ends p = 1 and p = inf, which are linear programs."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector

OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def minimal_end_norm(rows: Constraints, p: float) -> list[Solution]:
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
