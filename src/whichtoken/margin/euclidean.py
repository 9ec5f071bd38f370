"""The Euclidean problem min |w|_2 subject to A w >= b, and the question whether any w exists at all.

An augmented Lagrangian with semismooth Newton steps. For multipliers mu and a small eps the inner problem is
min_w |w|^2 / 2 + |(b + eps mu - A w)_+|^2 / (2 eps), piecewise quadratic: on the set J of violated rows its minimizer solves
(A_J A_J^T + eps I) lambda = (b + eps mu)_J, w = A_J^T lambda. A handful of Cholesky factors of the size of the support
suffices, and dependent rows do no harm.

If no w exists, the violations v = (b - A w)_+ tend to those of least squares, where A^T v = 0, v >= 0 and b.v = |v|^2 > 0:
a Farkas vector for nothing, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.constraints import Constraints, Farkas, Solution, cholesky
from whichtoken.norms import Vector

OUTER, INNER = 60, 30
# A smaller eps converges faster outside and is harder inside; the last three decades are for ill-conditioned rows.
LARGEST_EPSILON, WARM_EPSILON, SMALL_EPSILON, SMALLEST_EPSILON = 1e-2, 1e-5, 1e-7, 1e-10
CONVERGED, ROUNDING = 1e-13, 1e-10  # below the second, a change that shrinks no more is rounding
TIE = 1e-14  # relative to |w|: a row whose violation is zero but for rounding, so on either side
FARKAS = 1e-12  # |A^T v| / sum v for unit rows: what rounding leaves of an exact zero
VANISHED = 1e-7  # fraction of all violations below which a row has no part in the contradiction
SUSPICIOUS = 1e-5  # |A^T mu| / sum mu, which bounds the margin of unit rows, below which a Farkas vector is looked for


def minimal_norm(
    rows: Constraints, start: Solution, stop_at_farkas: bool = True, tolerance: float = CONVERGED
) -> Solution | Farkas:
    """Minimal l_2 norm weights with <a_k, w> >= b_k, and = 0 on free rows, up to a tolerance. Rows have unit norm.

    A vector that is a Farkas vector up to rounding ends the search, or is ignored.
    """
    weights, multipliers = start.weights, start.multipliers
    violated = np.ones(len(rows), dtype=bool)
    epsilon, last = LARGEST_EPSILON, np.inf
    if multipliers.any():  # a solution for fewer rows: most of what is tight is known
        violated, epsilon = rows.free | (multipliers > 0), WARM_EPSILON
    for _ in range(OUTER):
        target = rows.rhs + epsilon * multipliers
        weights, residual, violated, solved = _inner(rows, target, epsilon, weights, violated, tolerance)
        change = np.where(rows.free, residual, np.maximum(residual, 0.0)) - epsilon * multipliers
        multipliers = multipliers + change / epsilon
        if stop_at_farkas and np.linalg.norm(weights) < SUSPICIOUS * multipliers[~rows.free].sum():
            farkas = _farkas(rows, change)
            if farkas is not None:
                return farkas
        size = float(np.linalg.norm(change)) / float(np.linalg.norm(rows.rhs))
        if size <= tolerance or 0.3 * last < size <= ROUNDING:
            break
        smallest = SMALL_EPSILON if size < 0.1 * last else SMALLEST_EPSILON
        epsilon = max(epsilon / 10, min(smallest, epsilon)) if solved else min(epsilon * 10, LARGEST_EPSILON)
        last = size
    return Solution(weights, multipliers)


def _inner(
    rows: Constraints, target: Vector, epsilon: float, weights: Vector, violated: NDArray[np.bool_], tolerance: float
) -> tuple[Vector, Vector, NDArray[np.bool_], bool]:
    """Minimize |w|^2 / 2 + |(target - A w)_+|^2 / (2 eps); returns w, target - A w, which rows are violated, success.

    A last step may change the side of as large a part of the rows as the tolerance allows.
    """
    scores = rows.apply(weights)
    for _ in range(INNER):
        fit, _ = _ridge_regression(rows.subset(violated), epsilon)
        solution = fit(target[violated])
        image = rows.apply(solution)
        step = _step_length(weights, solution - weights, target - scores, image - scores, rows.free, epsilon)
        weights = weights + step * (solution - weights)
        scores = scores + step * (image - scores)
        now = rows.free | (target > scores)
        undecided = np.abs(target - scores) <= TIE * np.linalg.norm(weights)
        if step == 1.0 and np.count_nonzero((now != violated) & ~undecided) <= tolerance * len(rows):
            return weights, target - scores, violated, True
        violated = now
    return weights, target - scores, violated, False


def _ridge_regression(
    rows: Constraints, epsilon: float
) -> tuple[Callable[[Vector], Vector], Callable[[Vector], Vector]]:
    """Maps from r to the minimizer w of |r - A w|^2 + eps |w|^2 and to its residual r - A w.

    Both are written so that nothing cancels, with the smaller of A A^T and A^T A.
    """
    if len(rows) <= rows.columns:
        solve = cholesky(rows.gram(), epsilon)
        return lambda r: rows.adjoint(solve(r)), lambda r: epsilon * solve(r)
    dense = rows.dense
    solve = cholesky(dense.T @ dense, epsilon)
    return lambda r: solve(r @ dense), lambda r: r - dense @ solve(r @ dense)


def _step_length(
    weights: Vector, move: Vector, residual: Vector, change: Vector, free: NDArray[np.bool_], epsilon: float
) -> float:
    """Armijo step along a Newton direction; nearly always 1."""

    def value(step: float) -> float:
        point, left = weights + step * move, residual - step * change
        left = np.where(free, left, np.maximum(left, 0.0))
        return 0.5 * float(point @ point + left @ left / epsilon)

    start = value(0.0) * (1 + 1e-14)  # at the minimum, rounding must not forbid the full step
    slope = float(weights @ move - np.where(free, residual, np.maximum(residual, 0.0)) @ change / epsilon)
    step = 1.0
    while step > 1e-6 and value(step) > start + 1e-4 * step * slope:
        step /= 2
    return step


def _farkas(rows: Constraints, violation: Vector) -> Farkas | None:
    """Remove from the violations what A^T still sees of them, and the rows that then have none: a Farkas vector is left."""
    total = float(violation[~rows.free].sum())
    kept = np.flatnonzero(rows.free | (violation > VANISHED * total))
    while True:
        active = rows.subset(kept)
        _, residual = _ridge_regression(active, SMALL_EPSILON)
        candidate = violation[kept]
        for _ in range(4):  # each pass leaves eps / (eps + sigma^2) of a component with singular value sigma
            candidate = residual(candidate)
        positive = active.free | (candidate > VANISHED * total)
        if positive.all():
            break
        kept = kept[positive]
    result = np.zeros(len(rows))
    result[kept] = candidate
    proven = np.linalg.norm(active.adjoint(candidate)) <= FARKAS * result[~rows.free].sum()
    return Farkas(result) if proven and candidate @ active.rhs > 0 else None
