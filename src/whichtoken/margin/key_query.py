"""The max-margin problems of attention on given tokens: of a prompt, of a key-query matrix, and of W trained with its decoder.

Each function says what is asked, checks the input, and solves; what comes back is a `MarginCertificate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.margin.certificate import OPTIMAL_GAP, MarginCertificate, Status, combination_bound, level_bound
from whichtoken.margin.constraints import Constraints, selection_constraints
from whichtoken.margin.geometry import Norm, choose_norm, growth
from whichtoken.margin.solve import solve
from whichtoken.norms import Vector

ITERATIONS = 50
CONVERGED = 1e-11
TIE = 1e-8  # label margins come from a solver


def prompt_svm(
    tokens: ArrayLike | Sequence[ArrayLike], selected: Sequence[Any] | ArrayLike, p: float = 2.0, rhs: ArrayLike = 1.0
) -> MarginCertificate:
    """Minimal l_p norm vector w with (x_selected - x_t) @ w >= rhs for every unselected token t of every sequence.

    The limit in direction of a trained prompt (Tarzanagh, Li, Zhang, Oymak, arXiv 2306.13596, problem ATT-SVM).

    Parameters
    ----------
    tokens : array of shape (n, T, d), or list of arrays of shape (T_i, d)
        The tokens of each sequence.
    selected : array of shape (n,), or list of n index sets
        Index of the token to select in each sequence, or several; tokens of one set get equal scores. A token equal to
        a selected one counts as selected.
    p : float, default=2.0
        Norm, 1 <= p <= inf.
    rhs : float or array of shape (n,) or (m,), default=1.0
        Margins asked for: one for all, one per sequence, or one per constraint in the order (sequence, unselected token
        ascending). Not negative, at least one positive.

    Returns
    -------
    MarginCertificate
        With `direction` of shape (d,).

    Examples
    --------
    >>> from whichtoken.margin import prompt_svm
    >>> tokens = [[[2.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]]
    >>> limit = prompt_svm(tokens, selected=[0, 0])
    >>> limit.status, limit.direction.round(4).tolist()
    ('optimal', [0.7071, 0.7071])
    >>> prompt_svm([[[1.0], [0.0]], [[0.0], [1.0]]], selected=[0, 0]).status  # no direction prefers both
    'infeasible'
    """
    constraints = selection_constraints(tokens, None, selected, rhs)
    return solve(constraints, choose_norm("entrywise", p, constraints.shape))


def decoder_svm(
    tokens: Vector, labels: NDArray[np.int64], selected: NDArray[np.int64], p: float = 2.0
) -> tuple[MarginCertificate, Vector]:
    """The max-margin linear classifier of the selected tokens, and these tokens times their labels, (n, d)."""
    chosen = labels[:, None] * tokens[np.arange(len(selected)), selected]
    # tokens y x against zero: y v.x >= 1 is the max-margin problem of a linear classifier
    return prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0] * len(chosen), p=p), chosen


def key_query_svm(
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike,
    selected: Sequence[Any] | ArrayLike,
    p: float = 2.0,
    rhs: ArrayLike = 1.0,
    norm: str = "entrywise",
    gap: float = OPTIMAL_GAP,
) -> MarginCertificate:
    """Minimal norm matrix W with (x_selected - x_t)^T W z >= rhs for every unselected token t.

    With the entrywise l_p norm, the limit in direction of l_p mirror descent on the key-query matrix (Julistiono,
    Tarzanagh, Azizan, arXiv 2410.14581, problem l_p-AttSVM); with p = 1 of the Schatten norms, that of gradient descent
    on its factors (Tarzanagh, Li, Thrampoulidis, Oymak, arXiv 2308.16898).

    Parameters
    ----------
    tokens : array of shape (n, T, d), or list of arrays of shape (T_i, d)
        The tokens of each sequence.
    queries : array of shape (n, d)
        The query z of each sequence; the score of token x is x @ W @ z.
    selected : array of shape (n,), or list of n index sets
        Index of the token to select in each sequence, or several; tokens of one set get equal scores. A token equal to
        a selected one counts as selected.
    p : float, default=2.0
        Norm, 1 <= p <= inf.
    rhs : float or array of shape (n,) or (m,), default=1.0
        Margins asked for: one for all, one per sequence, or one per constraint in the order (sequence, unselected token
        ascending). Not negative, at least one positive.
    norm : {"entrywise", "schatten"}
        l_p norm of the entries, or of the singular values: nuclear for p = 1, Frobenius for p = 2, spectral for p = inf.
    gap : float, default=1e-8
        Duality gap that is close enough: 1e-6, say, saves a few steps in the nuclear and the spectral norm.

    Returns
    -------
    MarginCertificate
        With `direction` of shape (d, d).

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.margin import key_query_svm
    >>> rng = np.random.default_rng(0)
    >>> tokens, queries = rng.standard_normal((4, 3, 5)), rng.standard_normal((4, 5))
    >>> limit = key_query_svm(tokens, queries, selected=[0, 1, 2, 0], p=1.5)
    >>> limit.status, limit.direction.shape, limit.gap < 1e-8
    ('optimal', (5, 5), True)
    >>> scores = np.einsum("ntd,de,ne->nt", tokens, limit.direction, queries)
    >>> scores.argmax(axis=1).tolist()
    [0, 1, 2, 0]
    """
    constraints = selection_constraints(tokens, queries, selected, rhs)
    return solve(constraints, choose_norm(norm, p, constraints.shape), gap)


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
    exp(-|v| excess_i), so it asks for less attention margin: the direction maximizes rho over |W|_p <= 1 subject to
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
    measure = choose_norm(norm, p, constraints.shape)
    sequence = constraints.pairs[~constraints.free, 0]
    margins = np.asarray(label_margins, dtype=float)
    if margins.shape != np.shape(queries)[:1] or not np.isfinite(margins).all():
        raise ValueError(
            f"label_margins of shape {margins.shape} must be finite numbers of shape {np.shape(queries)[:1]}"
        )
    excess = margins[sequence] - margins[sequence].min()
    excess[excess <= TIE * np.abs(margins).max()] = 0.0
    if np.isinf(ratio):
        return solve(constraints.replace_rhs(excess == 0), measure)
    return _largest_rho(constraints, ratio * excess, measure)


def _largest_rho(constraints: Constraints, relief: Vector, norm: Norm) -> MarginCertificate:
    """Maximize rho over |W| <= 1 subject to <a_k, W> >= max(rho - relief_k, 0).

    Every vector of multipliers cuts off the larger rho, a Farkas vector too. The largest rho that is left is tried next,
    which is Newton's method on the convex function rho -> least norm.
    """
    attempt = solve(constraints.replace_rhs(relief == 0), norm)
    found = proof = attempt
    offset = np.zeros(len(constraints))
    offset[~constraints.free] = relief
    margin, bound, width = 0.0, np.inf, np.inf
    for _ in range(ITERATIONS):
        if attempt.status == "optimal" and attempt.direction is not None:
            # the rho that this direction achieves
            reached = level_bound(constraints, attempt.direction.ravel(), norm, offset)
            if reached > margin:
                found, margin = attempt, reached
        if (cut := _cut(constraints, relief, attempt, norm)) < bound:
            proof, bound = attempt, cut
        width, last = bound - margin, width
        if found.direction is None or width <= CONVERGED * bound or not width < last:  # what is left is rounding
            break
        demand = 1 - relief / bound
        attempt = solve(constraints.replace_rhs(np.where(demand > CONVERGED, demand, 0.0)), norm)
    if found.direction is None:
        return found
    gap = (bound - margin) / bound
    status: Status = "optimal" if gap <= OPTIMAL_GAP else "unconverged"
    face = found.face_dimension if status == "optimal" else None
    return replace(
        proof, direction=found.direction, margin=margin, dual_bound=bound, gap=gap, status=status, face_dimension=face
    )


def _cut(constraints: Constraints, relief: Vector, attempt: MarginCertificate, norm: Norm) -> float:
    """The rho at which sum_k mu_k max(rho - relief_k, 0) is the dual norm of sum_k mu_k a_k: no larger one is possible."""
    size = combination_bound(constraints, attempt.row_multipliers(constraints.free), norm)
    order = np.argsort(relief, kind="stable")
    order = order[attempt.multipliers[order] > 0]
    weight = attempt.multipliers[order]
    # the left side is the largest of its partial sums over ascending relief, each of them linear in rho
    cuts = (size + np.cumsum(weight * relief[order])) / np.cumsum(weight)
    return float(np.min(cuts)) * (1 + growth(2 * len(order)))
