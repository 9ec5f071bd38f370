"""The max-margin problem of a prompt: one vector that every selected token likes best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from whichtoken.margin.certificate import MarginCertificate
from whichtoken.margin.constraints import selection_constraints
from whichtoken.margin.geometry import chosen_norm
from whichtoken.margin.solve import solve


def prompt_svm(
    tokens: ArrayLike | Sequence[ArrayLike],
    selected: Sequence[Any] | ArrayLike,
    p: float = 2.0,
    rhs: ArrayLike = 1.0,
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
    return solve(constraints, chosen_norm("entrywise", p, constraints.shape))
