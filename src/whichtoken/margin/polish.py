"""Directions for demands that almost contradict each other: one more step, with residuals that rounding does not touch.

Where rows combine to almost nothing, the multipliers of a solution are known well and its weights are not: of (1, 0) and
(-1, 2^-40) the best direction is (2^-41, 1), and a solver returns (0, 1), which separates nothing. But the rows with
multipliers are then known to be tight, and the margin at which they are. Refinement with exact residuals finds the least
change of the weights that makes them so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from whichtoken.margin.bounds import EXACT_WORK
from whichtoken.margin.certificate import MarginCertificate, certify_direction
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.exact import exact_scores
from whichtoken.margin.rounding import UNIT
from whichtoken.norms import Vector

if TYPE_CHECKING:
    from whichtoken.margin.vocabulary import VocabularyConstraints

REFINEMENTS = 12
SPARE_UNITS = (0.0, 4.0)  # of rounding, above the margin, for a row so long that no float meets the margin itself
TIGHT = 1e-8  # of the largest multiplier, each times the norm of its row


def polished(
    constraints: Constraints | VocabularyConstraints, certificate: MarginCertificate, p: float
) -> MarginCertificate:
    """The certificate with its direction moved until the rows with multipliers are tight, if that is better."""
    multipliers = certificate.on_rows(constraints.free)
    shares = multipliers * constraints.norms(2)
    tight = np.flatnonzero(constraints.free | (shares > TIGHT * shares[~constraints.free].max()))
    if certificate.direction is None or tight.size * certificate.direction.size > EXACT_WORK:
        return certificate
    rows = constraints.subset(tight)
    target, start = certificate.dual_bound * rows.rhs, certificate.direction.ravel()
    for spare in SPARE_UNITS:
        weights = _refined(rows, start, target + spare * UNIT * rows.norms(2))
        better = certify_direction(constraints, weights, multipliers, p)
        certificate = max(certificate, better, key=lambda candidate: candidate.margin)
        if certificate.status == "optimal":
            break
    return certificate


def _refined(rows: Constraints, weights: Vector, target: Vector) -> Vector:
    """Weights nearby whose scores are the target, each known exactly at every step."""
    unit, factor = rows.normalized()
    inverse = np.linalg.pinv(unit.dense, rcond=1e-15)
    for _ in range(REFINEMENTS):
        weights = weights + inverse @ (factor * (target - exact_scores(rows, weights)))
    return weights
