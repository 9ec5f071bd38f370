"""From constraints to a certificate: the right method for each p, on as few rows as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.certificate import MarginCertificate, certify_direction, certify_infeasible
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.euclidean import minimal_norm
from whichtoken.margin.infeasible import proven
from whichtoken.margin.interior import minimal_power_norm
from whichtoken.margin.linear import minimal_end_norm
from whichtoken.margin.polish import polished
from whichtoken.margin.solution import Farkas, Solution
from whichtoken.norms import Vector
from whichtoken.threads import one_thread

if TYPE_CHECKING:
    from whichtoken.margin.vocabulary import VocabularyConstraints

Outcome = TypeVar("Outcome", Solution, Solution | Farkas)

# Up to so many rows are simply all used; of more, the most violated ones are added in portions of this size.
EUCLIDEAN_PORTION, INTERIOR_PORTION = 1024, 512
ROUNDS = 30
# Where the interior-point method is used, and where the linear program at the nearer end is close enough to be tried.
SMOOTH, NEAR_ENDS = (1.002, 500.0), (1.02, 50.0)
VIOLATED = 1e-12


def solve(constraints: Constraints | VocabularyConstraints, p: float) -> MarginCertificate:
    """Minimal l_p norm solution of the constraints, 1 <= p <= inf, or a proof that there is none.

    Feasibility does not depend on p, so the Euclidean problem comes first: it either proves infeasibility or gives the
    other methods a point to start from.
    """
    if not p >= 1:
        raise ValueError(f"p={p} must lie in [1, inf]")
    with one_thread():  # ten times as fast as two on a machine of two cores
        return _solve(constraints, p)


def _solve(constraints: Constraints | VocabularyConstraints, p: float) -> MarginCertificate:
    unit, factor = constraints.normalized()
    hopeless = (factor == 0) & (constraints.rhs > 0)
    if hopeless.any():
        return certify_infeasible(constraints, hopeless.astype(float))

    mean = Solution(unit.adjoint(np.where(unit.free, 0.0, 1.0)), np.zeros(len(unit)))
    euclidean = _on_working_set(unit, mean, minimal_norm, EUCLIDEAN_PORTION)
    best: MarginCertificate | None = None
    if isinstance(euclidean, Farkas):
        farkas = euclidean.multipliers * factor
        if proven(constraints, farkas):
            return certify_infeasible(constraints, farkas)
        best = certify_direction(constraints, mean.weights, farkas, p)  # the vector still bounds the margin
        if best.status == "infeasible":
            return best
        euclidean = _on_working_set(unit, mean, partial(minimal_norm, stop_at_farkas=False), EUCLIDEAN_PORTION)
    assert isinstance(euclidean, Solution)
    for candidate in _candidates(unit, euclidean, p):
        certificate = certify_direction(constraints, candidate.weights, candidate.multipliers * factor, p)
        if certificate.status != "unconverged":
            return certificate
        best = certificate if best is None else _better_of_both(constraints, best, certificate, p)
    assert best is not None  # the Euclidean solution is always a candidate
    return polished(constraints, best, p)


def _better_of_both(
    constraints: Constraints | VocabularyConstraints, one: MarginCertificate, other: MarginCertificate, p: float
) -> MarginCertificate:
    """The larger margin with the smaller bound."""
    primal = max(one, other, key=lambda certificate: certificate.margin)
    dual = min(one, other, key=lambda certificate: certificate.dual_bound)
    if primal is dual:
        return primal
    assert primal.direction is not None
    return certify_direction(constraints, primal.direction.ravel(), dual.on_rows(constraints.free), p)


def _candidates(rows: Constraints | VocabularyConstraints, euclidean: Solution, p: float) -> Iterator[Solution]:
    """Solutions to try, the most promising first."""
    if p == 2:
        yield euclidean
    if SMOOTH[0] <= p <= SMOOTH[1]:
        yield _on_working_set(rows, euclidean, partial(minimal_power_norm, p=p), INTERIOR_PORTION)
    if not NEAR_ENDS[0] < p < NEAR_ENDS[1]:
        yield from minimal_end_norm(rows.subset(slice(None)), 1 if p < 2 else np.inf)
    if p != 2:
        yield euclidean
    if not SMOOTH[0] <= p <= SMOOTH[1]:
        yield _on_working_set(rows, euclidean, partial(minimal_power_norm, p=2.0), INTERIOR_PORTION)


def _on_working_set(
    rows: Constraints | VocabularyConstraints,
    start: Solution,
    method: Callable[[Constraints, Solution], Outcome],
    portion: int,
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


def _slack(rows: Constraints | VocabularyConstraints, weights: Vector, reference: NDArray[np.bool_]) -> Vector:
    """Distance of every row to the level that the weights reach on the reference rows, relative to |w|."""
    scores = rows.apply(weights) / (np.linalg.norm(weights) or 1.0)
    positive = reference & (rows.rhs > 0)
    level = float(np.min(scores[positive] / rows.rhs[positive]))
    return scores - level * rows.rhs
