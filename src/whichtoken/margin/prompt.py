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
    """Minimal l_p norm vector w with (x_selected - x_t) . w >= rhs for every unselected token t of every sequence.

    The limit in direction of a trained prompt (Tarzanagh, Li, Zhang, Oymak, arXiv 2306.13596, problem ATT-SVM).

    Parameters
    ----------
    tokens : array of shape (n, T, d), or list of arrays of shape (T_i, d)
    selected : (n,) token indices, or a list of n index sets
        Tokens of one set get equal scores. A token equal to a selected one counts as selected.
    p : float
        1 <= p <= inf.
    rhs : float, (n,) per sequence, or (m,) per constraint in the order (sequence, unselected token ascending)
        Not negative, at least one positive.

    Returns
    -------
    MarginCertificate
        With `direction` of shape (d,).
    """
    constraints = selection_constraints(tokens, None, selected, rhs)
    return solve(constraints, chosen_norm("entrywise", p, constraints.shape))
