"""From constraints to a certificate: the right method for each p, on as few rows as possible, then a last refinement.

`polish` is for demands that almost contradict each other. Where rows combine to almost nothing, the multipliers of a solution
are known well and its weights are not: of (1, 0) and (-1, 2^-40) the best direction is (2^-41, 1), and a solver returns (0, 1),
which separates nothing. But the rows with multipliers are then known to be tight, and the margin at which they are. Refinement
with exact residuals finds the least change of the weights that makes them so.

`face_dimension` says how many best directions there are, where floats can tell. Strictly convex norms have one. At p = 1 and
p = inf an interior-point method ends inside the optimal face, and the directions along which one can move inside it are those
that keep the tight rows tight and, of the singular values,

nuclear    the rank: dW = U H V^T with H symmetric, on the singular vectors of positive singular values;
spectral   those that equal the norm: dW = U H V^T with any H, on the other singular vectors;

or, of the entries, those that are zero (p = 1) or equal to the norm (p = inf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.certificate import (
    EXACT_WORK,
    OPTIMAL_GAP,
    MarginCertificate,
    certify_direction,
    certify_infeasible,
)
from whichtoken.margin.constraints import AnyConstraints, Constraints, Farkas, Solution
from whichtoken.margin.euclidean import CONVERGED, minimal_norm
from whichtoken.margin.exact import exact_scores, is_infeasible
from whichtoken.margin.extreme import minimal_entry_norm, minimal_matrix_norm, simplex_solutions
from whichtoken.margin.geometry import EUCLIDEAN, UNIT, Norm, SchattenNorm
from whichtoken.margin.interior import minimal_power_norm
from whichtoken.norms import Vector
from whichtoken.threads import one_thread

Outcome = TypeVar("Outcome", Solution, Solution | Farkas)
# Up to so many rows are simply all used; of more, the most violated ones are added in portions of this size.
EUCLIDEAN_PORTION, INTERIOR_PORTION = 1024, 512
ROUNDS = 30
START = 3e-2  # violation, relative to the demands, of a Euclidean solution from which another norm starts
# Where the interior-point method is used, and where the linear program at the nearer end is close enough to be tried.
SMOOTH, NEAR_ENDS = (1.002, 500.0), (1.02, 50.0)
VIOLATED = 1e-12
REFINEMENTS = 12
SPARE_UNITS = (0.0, 4.0)  # of rounding, above the margin, for a row so long that no float meets the margin itself
TIGHT = 1e-8  # of the largest multiplier, each times the norm of its row
# Below the first, a number is zero; above the second, it is not; in between, floats cannot tell.
DOUBT = (1e-6, 1e-4)
# tight rows depend on each other by their multipliers, up to the error of singular vectors
DOUBT_OF_SQUARES = (1e-9, 1e-6)


def solve(constraints: AnyConstraints, norm: Norm, gap: float = OPTIMAL_GAP) -> MarginCertificate:
    """Minimal norm solution of the constraints up to a duality gap, or a proof that there is none.

    Feasibility does not depend on the norm, so the Euclidean problem comes first: it either proves infeasibility or gives the
    other methods a point to start from.
    """
    with one_thread():  # ten times as fast as two on a machine of two cores
        certificate = _solve(constraints, norm, gap)
        return replace(certificate, face_dimension=face_dimension(constraints, certificate, norm))


def _solve(constraints: AnyConstraints, norm: Norm, gap: float) -> MarginCertificate:
    unit, factor = constraints.normalize()
    hopeless = (factor == 0) & (constraints.rhs > 0)
    if hopeless.any():
        return certify_infeasible(constraints, hopeless.astype(float))

    mean = Solution(unit.adjoint(np.where(unit.free, 0.0, 1.0)), np.zeros(len(unit)))
    euclidean_norm = partial(minimal_norm, tolerance=CONVERGED if norm.p == 2 else START)
    euclidean = _solve_on_working_set(unit, mean, euclidean_norm, EUCLIDEAN_PORTION)
    best: MarginCertificate | None = None
    if isinstance(euclidean, Farkas):
        farkas = euclidean.multipliers * factor
        if is_infeasible(constraints, farkas):
            return certify_infeasible(constraints, farkas)
        best = certify_direction(constraints, mean.weights, farkas, norm)  # the vector still bounds the margin
        if best.status == "infeasible":
            return best
        euclidean = _solve_on_working_set(unit, mean, partial(euclidean_norm, stop_at_farkas=False), EUCLIDEAN_PORTION)
    assert isinstance(euclidean, Solution)
    for candidate in _candidates(unit, euclidean, norm, gap):
        certificate = certify_direction(constraints, candidate.weights, candidate.multipliers * factor, norm, gap)
        if certificate.status != "unconverged":
            return certificate
        # the larger margin with the smaller bound
        primal = max(best or certificate, certificate, key=lambda candidate: candidate.margin)
        dual = min(best or certificate, certificate, key=lambda candidate: candidate.dual_bound)
        best = primal
        if primal is not dual and primal.direction is not None:
            multipliers = dual.row_multipliers(constraints.free)
            best = certify_direction(constraints, primal.direction.ravel(), multipliers, norm)
    assert best is not None  # the Euclidean solution is always a candidate
    return polish(constraints, best, norm)


def _candidates(rows: AnyConstraints, euclidean: Solution, norm: Norm, gap: float) -> Iterator[Solution]:
    """Solutions to try, the most promising first."""
    p = norm.p
    if p == 2:
        yield euclidean
    if SMOOTH[0] <= p <= SMOOTH[1]:
        yield _solve_on_working_set(rows, euclidean, partial(minimal_power_norm, norm=norm), INTERIOR_PORTION)
    if not NEAR_ENDS[0] < p < NEAR_ENDS[1]:
        # the solution at p = 1 or p = inf, whichever is nearer
        end = 1.0 if norm.p < 2 else np.inf
        matrices = partial(minimal_matrix_norm, gap=gap)
        method = matrices if isinstance(norm, SchattenNorm) else minimal_entry_norm
        yield _solve_on_working_set(rows, euclidean, partial(method, p=end), INTERIOR_PORTION)
        if not isinstance(norm, SchattenNorm):
            yield from simplex_solutions(rows.subset(slice(None)), end)
    if p != 2:
        yield euclidean
    if not SMOOTH[0] <= p <= SMOOTH[1]:
        yield _solve_on_working_set(rows, euclidean, partial(minimal_power_norm, norm=EUCLIDEAN), INTERIOR_PORTION)


def _solve_on_working_set(
    rows: AnyConstraints, start: Solution, method: Callable[[Constraints, Solution], Outcome], portion: int
) -> Outcome | Solution:
    """Solve on a subset of the rows and add violated ones until there are none."""
    if len(rows) <= portion:
        return method(rows.subset(slice(None)), start)
    chosen = rows.free | (start.multipliers > 0)
    chosen[np.argpartition(_slack(rows, start.weights, ~rows.free), portion)[:portion]] = True
    for _ in range(ROUNDS):
        outcome = method(rows.subset(chosen), Solution(start.weights, start.multipliers[chosen]))
        multipliers = np.zeros(len(rows))
        multipliers[chosen] = outcome.multipliers
        if isinstance(outcome, Farkas):
            return replace(outcome, multipliers=multipliers)
        start = Solution(outcome.weights, multipliers)
        slack = _slack(rows, start.weights, chosen & ~rows.free)
        violated = np.flatnonzero(~chosen & (slack < -VIOLATED))
        if violated.size == 0:
            break
        chosen[violated[np.argsort(slack[violated])[:portion]]] = True
    return start


def _slack(rows: AnyConstraints, weights: Vector, reference: NDArray[np.bool_]) -> Vector:
    """Distance of every row to the level that the weights reach on the reference rows, relative to |w|."""
    scores = rows.apply(weights) / (np.linalg.norm(weights) or 1.0)
    positive = reference & (rows.rhs > 0)
    level = float(np.min(scores[positive] / rows.rhs[positive]))
    return scores - level * rows.rhs


def polish(constraints: AnyConstraints, certificate: MarginCertificate, norm: Norm) -> MarginCertificate:
    """The certificate with its direction moved until the rows with multipliers are tight, if that is better."""
    multipliers = certificate.row_multipliers(constraints.free)
    shares = multipliers * constraints.norms(2)
    tight = np.flatnonzero(constraints.free | (shares > TIGHT * shares[~constraints.free].max()))
    if certificate.direction is None or tight.size * certificate.direction.size > EXACT_WORK:
        return certificate
    rows = constraints.subset(tight)
    target, start = certificate.dual_bound * rows.rhs, certificate.direction.ravel()
    unit, factor = rows.normalize()
    inverse = np.linalg.pinv(unit.dense, rcond=1e-15)
    for spare in SPARE_UNITS:
        weights, wanted = start, target + spare * UNIT * rows.norms(2)
        for _ in range(REFINEMENTS):
            weights = weights + inverse @ (factor * (wanted - exact_scores(rows, weights)))
        better = certify_direction(constraints, weights, multipliers, norm)
        certificate = max(certificate, better, key=lambda candidate: candidate.margin)
        if certificate.status == "optimal":
            break
    return certificate


def face_dimension(constraints: AnyConstraints, certificate: MarginCertificate, norm: Norm) -> int | None:
    """Dimension of the set of best directions, or None if it is not known."""
    if certificate.status != "optimal" or certificate.direction is None or certificate.gap > OPTIMAL_GAP:
        return None
    if 1 < norm.p < np.inf:
        return 0
    weights, (unit, _) = certificate.direction.ravel(), constraints.normalize()
    scores, positive = unit.apply(weights), unit.rhs > 0
    slack = scores - unit.rhs * np.min(scores[positive] / unit.rhs[positive])
    loose = _positive(slack / np.abs(scores).max(), DOUBT)
    if isinstance(norm, SchattenNorm):
        left, values, right = np.linalg.svd(certificate.direction)
    else:
        values = np.abs(weights)
    values = values / values.max()
    kept = _positive(values if norm.p == 1 else 1 - values, DOUBT)
    if loose is None or kept is None:
        return None
    tight = unit.subset(unit.free | ~loose)
    if isinstance(norm, SchattenNorm):
        # the (symmetric) matrices H with rows_k^T H columns_k = 0 for all k
        rows, columns, size = tight.left @ left[:, kept], tight.right @ right[kept].T, int(kept.sum())
        gram, mixed = (rows @ rows.T) * (columns @ columns.T), rows @ columns.T
        if norm.p == 1:
            return _freedom(size * (size + 1) // 2, (gram + mixed * mixed.T) / 2)
        return _freedom(size**2, gram)
    return _freedom(int(kept.sum()), tight.gram(kept.astype(float)))


def _positive(values: Vector, doubt: tuple[float, float]) -> NDArray[np.bool_] | None:
    """Which values are not zero; None if there is doubt about one of them."""
    if np.any((values > doubt[0]) & (values < doubt[1])):
        return None
    return np.asarray(values >= doubt[1])


def _freedom(unknowns: int, gram: Vector) -> int | None:
    """How many of the unknowns equations with this Gram matrix leave free."""
    values = np.linalg.eigvalsh(gram)
    independent = _positive(values / values.max(initial=1e-300), DOUBT_OF_SQUARES)
    return None if independent is None else unknowns - int(independent.sum())
