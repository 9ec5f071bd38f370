"""Where key-query matrix and decoder end when they are trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.margin.bounds import combination_bound, level_bound
from whichtoken.margin.certificate import OPTIMAL_GAP, MarginCertificate, Status
from whichtoken.margin.constraints import Constraints, selection_constraints
from whichtoken.margin.geometry import Norm, chosen_norm
from whichtoken.margin.rounding import growth
from whichtoken.margin.solve import solve
from whichtoken.norms import Vector

ITERATIONS = 50
CONVERGED = 1e-11
TIE = 1e-8  # label margins come from a solver


def joint_limit(
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike,
    selected: Sequence[Any] | ArrayLike,
    label_margins: ArrayLike,
    ratio: float,
    p: float = 2.0,
    norm: str = "entrywise",
) -> MarginCertificate:
    """Limit direction of W in joint l_p training of (W, v) when |v|_p / |W|_p tends to `ratio`.

    Sequence i, whose label margin exceeds the smallest one by excess_i, has a loss smaller by the factor
    exp(-|v| excess_i), so it asks for less attention margin: the direction maximises rho over |W|_p <= 1 subject to
    gap_it(W) >= max(rho - ratio excess_i, 0), where gap_it = (x_selected - x_t)^T W z_i. Ratio 0 is `key_query_svm`;
    ratio inf has right-hand sides 1 for the sequences of smallest label margin and 0 for the others.

    Setting of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581 (joint training of W and v).

    Parameters
    ----------
    tokens, queries, selected : as in `key_query_svm`
        The sequences, their queries and the tokens to select.
    label_margins : array of shape (n,)
        y_i v^T x_i,selected for v of unit l_p norm. The smallest one is taken over sequences with an unselected token;
        margins that exceed it by less than 1e-8 of the largest are ties.
    ratio : float
        Limit of |v|_p / |W|_p, 0 <= ratio <= inf.
    p : float, default=2.0
        Norm, 1 <= p <= inf.
    norm : {"entrywise", "schatten"}
        Of the entries or of the singular values.

    Returns
    -------
    MarginCertificate
        With margin rho; `dual_bound` is an upper bound on rho over the whole family.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.margin import joint_limit, key_query_svm
    >>> rng = np.random.default_rng(0)
    >>> tokens, queries = rng.standard_normal((3, 3, 4)), rng.standard_normal((3, 4))
    >>> limit = joint_limit(tokens, queries, [0, 1, 2], label_margins=[0.5, 0.7, 1.0], ratio=2.0)
    >>> limit.status
    'optimal'
    >>> limit.margin >= key_query_svm(tokens, queries, [0, 1, 2]).margin  # the easy sequences ask for less
    True
    """
    if not ratio >= 0:
        raise ValueError(f"ratio={ratio} must lie in [0, inf]")
    constraints = selection_constraints(tokens, queries, selected, 1.0)
    measure = chosen_norm(norm, p, constraints.shape)
    sequence = constraints.pairs[~constraints.free, 0]
    margins = np.asarray(label_margins, dtype=float)
    if margins.shape != np.shape(queries)[:1] or not np.isfinite(margins).all():
        raise ValueError(
            f"label_margins of shape {margins.shape} must be finite numbers of shape {np.shape(queries)[:1]}"
        )
    excess = margins[sequence] - margins[sequence].min()
    excess[excess <= TIE * np.abs(margins).max()] = 0.0
    if np.isinf(ratio):
        return solve(constraints.with_rhs(excess == 0), measure)
    return _largest_rho(constraints, ratio * excess, measure)


def _largest_rho(constraints: Constraints, relief: Vector, norm: Norm) -> MarginCertificate:
    """Maximise rho over |W| <= 1 subject to <a_k, W> >= max(rho - relief_k, 0).

    Every vector of multipliers cuts off the larger rho, a Farkas vector too. The largest rho that is left is tried next,
    which is Newton's method on the convex function rho -> least norm.
    """
    attempt = solve(constraints.with_rhs(relief == 0), norm)
    found = proof = attempt
    margin, bound, width = 0.0, np.inf, np.inf
    for _ in range(ITERATIONS):
        if attempt.status == "optimal" and (reached := _reached(constraints, relief, attempt, norm)) > margin:
            found, margin = attempt, reached
        if (cut := _cut(constraints, relief, attempt, norm)) < bound:
            proof, bound = attempt, cut
        width, last = bound - margin, width
        if found.direction is None or width <= CONVERGED * bound or not width < last:  # what is left is rounding
            break
        demand = 1 - relief / bound
        attempt = solve(constraints.with_rhs(np.where(demand > CONVERGED, demand, 0.0)), norm)
    if found.direction is None:
        return found
    gap = (bound - margin) / bound
    status: Status = "optimal" if gap <= OPTIMAL_GAP else "unconverged"
    return replace(
        proof,
        direction=found.direction,
        margin=margin,
        dual_bound=bound,
        gap=gap,
        status=status,
        face_dimension=found.face_dimension if status == "optimal" else None,
    )


def _reached(constraints: Constraints, relief: Vector, attempt: MarginCertificate, norm: Norm) -> float:
    """The rho that a direction achieves."""
    assert attempt.direction is not None
    offset = np.zeros(len(constraints))
    offset[~constraints.free] = relief
    return level_bound(constraints, attempt.direction.ravel(), norm, offset)


def _cut(constraints: Constraints, relief: Vector, attempt: MarginCertificate, norm: Norm) -> float:
    """The rho at which sum_k mu_k max(rho - relief_k, 0) is the dual norm of sum_k mu_k a_k: no larger one is possible."""
    size = combination_bound(constraints, attempt.on_rows(constraints.free), norm)
    order = np.argsort(relief, kind="stable")
    order = order[attempt.multipliers[order] > 0]
    weight = attempt.multipliers[order]
    # the left side is the largest of its partial sums over ascending relief, each of them linear in rho
    cuts = (size + np.cumsum(weight * relief[order])) / np.cumsum(weight)
    return float(np.min(cuts)) * (1 + growth(2 * len(order)))
