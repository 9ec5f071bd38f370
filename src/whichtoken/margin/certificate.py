"""What a margin solver returns: an answer with its proof, two numbers that hold whatever rounding did.

`level_bound` is never above the margin that a direction reaches and `dual_bound` never below the best margin. Where rounding
would show, both are computed in exact arithmetic (`margin.exact`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.margin.constraints import AnyConstraints, Indices
from whichtoken.margin.exact import exact_combination, exact_scores
from whichtoken.margin.geometry import Norm, growth
from whichtoken.norms import Vector

OPTIMAL_GAP = 1e-8
# A constraint with right-hand side zero (and an equality inside a selected set) cannot be met by scaling the direction.
# It counts as met when it fails by no more than this fraction of |a_k|_q, far below the gap that is promised.
ROUNDING = 1e-10
SUPPORT = 1e-8
LOOSE = 1e-10  # relative width of a bracket that is narrowed in exact arithmetic, far below the gap that is promised
EXACT_WORK = 2**18  # entries of rows beyond which that takes too long
Status = Literal["optimal", "infeasible", "unconverged"]


@dataclass(frozen=True)
class MarginCertificate(Shown):
    """A max-margin direction between a feasible primal and a feasible dual point.

    With constraints <a_k, W> >= b_k the two points are `direction`, scaled until every constraint holds, and
    `multipliers`; weak duality says that no direction of unit l_p norm can do better than `dual_bound`.

    Attributes
    ----------
    direction : array of shape (d,) or (d, d), or None
        Unit l_p norm. None when no direction separates the tokens.
    margin : float
        min_k <a_k, direction> / b_k over b_k > 0: one over the l_p norm of the best solution in hand. Rounded down by
        all that rounding may have added, so that the tokens as they are reach it.
    dual_bound : float
        |sum_k mu_k a_k|_q / sum_k mu_k b_k, an upper bound on every margin (q = p / (p - 1)), rounded up likewise.
    gap : float
        (dual_bound - margin) / dual_bound.
    multipliers : array of shape (m,)
        Non-negative, sum 1, in the order (sequence, unselected token ascending). If infeasible, a Farkas vector,
        rounded: sum_k mu_k b_k > 0 although sum_k mu_k a_k is zero.
    support : array of int
        Indices of multipliers above 1e-8 of the largest.
    status : {"optimal", "infeasible", "unconverged"}
        "optimal" needs gap <= 1e-8 (or what was asked for), and constraints with b_k = 0 met up to 1e-10 |a_k|_q.
        "infeasible" is proven for the tokens as they are, not up to rounding (`margin.exact`). "unconverged" is neither,
        and all that is known then is that the best margin lies between `margin` and `dual_bound`.
    pairs : array of shape (m, 2)
        Sequence and unselected token of each multiplier.
    equality_multipliers : array
        Of any sign, for the equal scores inside selected sets; part of sum_k mu_k a_k. Order (sequence, further
        selected tokens ascending), each for (first selected token minus further one); empty without sets.
    face_dimension : int or None
        Dimension of the set of best directions, as far as float64 can tell: 0 for 1 < p < inf, where the best one is
        unique. None if it is not known, and without a best direction.

    Examples
    --------
    >>> from whichtoken.margin import prompt_svm
    >>> limit = prompt_svm([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]], selected=[0, 0])
    >>> limit.status, limit.direction.round(4).tolist(), round(limit.margin, 4)
    ('optimal', [0.7071, 0.7071], 1.4142)
    >>> limit.margin <= limit.dual_bound and limit.gap < 1e-8
    True
    >>> limit.pairs[limit.support].tolist()  # (sequence, token) pairs that hold the direction in place
    [[0, 1], [1, 1]]
    """

    direction: Vector | None
    margin: float
    dual_bound: float
    gap: float
    multipliers: Vector
    support: Indices
    status: Status
    pairs: Indices
    equality_multipliers: Vector
    face_dimension: int | None = None

    def require_direction(self, what: str = "separated") -> Vector:
        """The direction; an error if the constraints contradict each other, so that there is none."""
        if self.direction is None:
            raise UsageError(f"the selected tokens cannot be {what}: no limit exists")
        return self.direction

    @property
    def unique(self) -> bool | None:
        """Whether `direction` is the only best one; None if that is not known."""
        return None if self.face_dimension is None else self.face_dimension == 0

    def row_multipliers(self, free: NDArray[np.bool_]) -> Vector:
        """Both kinds of multipliers in the order of the constraints, of which `free` are equalities."""
        multipliers = np.empty(len(free))
        multipliers[~free], multipliers[free] = self.multipliers, self.equality_multipliers
        return multipliers

    def _headline(self) -> str:
        if self.status == "infeasible":
            return "no direction separates the tokens, proven"
        held = f"{len(self.support)} of {len(self.multipliers)} constraints hold it"
        return f"{self.status}, margin {self.margin:.6g} (at most {self.dual_bound:.6g}, gap {self.gap:.1e}); {held}"


def certify_direction(
    constraints: AnyConstraints, weights: Vector, multipliers: Vector, norm: Norm, gap: float = OPTIMAL_GAP
) -> MarginCertificate:
    """Certify a pair of candidates: only what is verified here, rounding included, enters the certificate."""
    binding = constraints.rhs > 0
    direction = constraints.project(weights)
    # after a method that broke down any direction will do
    if not (np.isfinite(direction).all() and direction.any()):
        direction = np.ones_like(weights)
    direction = direction / norm.of(direction)
    multipliers = np.where(constraints.free, multipliers, np.maximum(multipliers, 0.0))
    if not (np.isfinite(multipliers).all() and multipliers @ constraints.rhs > 0):
        multipliers = binding.astype(float)
    multipliers = multipliers / np.abs(multipliers).max()
    bound = dual_bound(constraints, multipliers, norm)
    # a bound of zero says that the rows combine to zero exactly
    if bound == 0:
        return certify_infeasible(constraints, multipliers)
    margin = min(max(level_bound(constraints, direction, norm), 0.0), bound)
    status: Status = (
        "optimal"
        if 1 - margin / bound <= gap and _unscalable_rows_hold(constraints, direction, norm)
        else "unconverged"
    )
    return _certificate(constraints, constraints.reshape(direction), margin, bound, multipliers, status)


def _unscalable_rows_hold(constraints: AnyConstraints, direction: Vector, norm: Norm) -> bool:
    """Whether the rows without a positive right-hand side hold, up to what no scaling of the direction can mend."""
    rows = constraints.subset(constraints.rhs == 0)
    scores = rows.apply(direction)
    slack = np.where(rows.free, -np.abs(scores), scores)
    return bool(np.all(slack >= -ROUNDING * rows.norms(norm.dual().row_exponent)))


def certify_infeasible(constraints: AnyConstraints, farkas: Vector) -> MarginCertificate:
    """Wrap a Farkas vector; the caller has proven that the constraints contradict each other on it."""
    return _certificate(constraints, None, 0.0, 0.0, farkas, "infeasible")


def _certificate(
    constraints: AnyConstraints, direction: Any, margin: float, bound: float, multipliers: Vector, status: Status
) -> MarginCertificate:
    gap, free = 1 - margin / bound if bound else 0.0, constraints.free
    multipliers = multipliers / multipliers[~free].sum()
    inequality = multipliers[~free]
    support = np.flatnonzero(inequality > SUPPORT * inequality.max())
    pairs = constraints.pairs[~free]
    return MarginCertificate(direction, margin, bound, gap, inequality, support, status, pairs, multipliers[free])


def level_bound(constraints: AnyConstraints, direction: Vector, norm: Norm, offset: Vector | float = 0.0) -> float:
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


def combination_bound(constraints: AnyConstraints, multipliers: Vector, norm: Norm) -> float:
    """Dual norm of sum_k mu_k a_k, not less; zero only if it is zero."""
    combined, dual = constraints.adjoint(multipliers), norm.dual()
    least, bound = dual.bracket(combined, constraints.adjoint_error(multipliers))
    if bound - least > LOOSE * bound:
        used = np.flatnonzero(multipliers)
        if used.size * combined.size <= EXACT_WORK:
            bound = dual.of(exact_combination(constraints.subset(used), multipliers[used]))
    return bound * (1 + dual.rounding(combined.size))


def dual_bound(constraints: AnyConstraints, multipliers: Vector, norm: Norm) -> float:
    """Dual norm of sum_k mu_k a_k over sum_k mu_k b_k, not less: no margin exceeds it."""
    demand = float(multipliers @ constraints.rhs) * (1 - growth(len(constraints)))
    return combination_bound(constraints, multipliers, norm) / demand
