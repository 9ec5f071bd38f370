"""The two numbers of a certificate, each on its safe side whatever rounding did; exact where rounding would show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.exact import exact_combination, exact_scores
from whichtoken.margin.geometry import Norm
from whichtoken.margin.rounding import growth
from whichtoken.norms import Vector

if TYPE_CHECKING:
    from whichtoken.margin.vocabulary import VocabularyConstraints

LOOSE = 1e-10  # relative width of a bracket that is narrowed in exact arithmetic, far below the gap that is promised
EXACT_WORK = 2**18  # entries of rows beyond which that takes too long


def level_bound(
    constraints: Constraints | VocabularyConstraints, direction: Vector, norm: Norm, offset: Vector | float = 0.0
) -> float:
    """min_k (<a_k, direction> + offset_k) / b_k over b_k > 0, not more, for a direction scaled to unit norm."""
    positive = constraints.rhs > 0
    rhs, shift = constraints.rhs[positive], np.broadcast_to(offset, positive.shape)[positive]
    scores = constraints.apply(direction)[positive]
    error = constraints.apply_error(direction)[positive]
    lowest, highest = (scores - error + shift) / rhs, (scores + error + shift) / rhs
    level, ceiling = float(lowest.min()), float(highest.min())
    if ceiling - level > LOOSE * abs(ceiling):
        unsure = np.flatnonzero(lowest <= ceiling)
        if unsure.size * direction.size <= EXACT_WORK:
            rows = constraints.subset(np.flatnonzero(positive)[unsure])
            level = float(np.min((exact_scores(rows, direction) + shift[unsure]) / rhs[unsure]))
    return level - abs(level) * norm.rounding(direction.size)


def combination_bound(constraints: Constraints | VocabularyConstraints, multipliers: Vector, norm: Norm) -> float:
    """Dual norm of sum_k mu_k a_k, not less; zero only if it is zero."""
    combined, dual = constraints.adjoint(multipliers), norm.dual()
    least, bound = dual.bracket(combined, constraints.adjoint_error(multipliers))
    if bound - least > LOOSE * bound:
        used = np.flatnonzero(multipliers)
        if used.size * combined.size <= EXACT_WORK:
            bound = dual.of(exact_combination(constraints.subset(used), multipliers[used]))
    return bound * (1 + dual.rounding(combined.size))


def dual_bound(constraints: Constraints | VocabularyConstraints, multipliers: Vector, norm: Norm) -> float:
    """Dual norm of sum_k mu_k a_k over sum_k mu_k b_k, not less: no margin exceeds it."""
    demand = float(multipliers @ constraints.rhs) * (1 - growth(len(constraints)))
    return combination_bound(constraints, multipliers, norm) / demand
