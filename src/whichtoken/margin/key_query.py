"""The max-margin problem of a key-query matrix: the selected token wins for its sequence's own query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from whichtoken.margin.certificate import MarginCertificate
from whichtoken.margin.constraints import selection_constraints
from whichtoken.margin.geometry import chosen_norm
from whichtoken.margin.solve import solve


def key_query_svm(
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike,
    selected: Sequence[Any] | ArrayLike,
    p: float = 2.0,
    rhs: ArrayLike = 1.0,
    norm: str = "entrywise",
) -> MarginCertificate:
    """Minimal norm matrix W with (x_selected - x_t)^T W z >= rhs for every unselected token t.

    With the entrywise l_p norm, the limit in direction of l_p mirror descent on the key-query matrix (Julistiono,
    Tarzanagh, Azizan, arXiv 2410.14581, problem l_p-AttSVM); with p = 1 of the Schatten norms, that of gradient descent
    on its factors (Tarzanagh, Li, Thrampoulidis, Oymak, arXiv 2308.16898).

    Parameters
    ----------
    tokens : array of shape (n, T, d), or list of arrays of shape (T_i, d)
    queries : array of shape (n, d)
        The query z of each sequence; the score of token x is x @ W @ z.
    selected : (n,) token indices, or a list of n index sets
        Tokens of one set get equal scores. A token equal to a selected one counts as selected.
    p : float
        1 <= p <= inf.
    rhs : float, (n,) per sequence, or (m,) per constraint in the order (sequence, unselected token ascending)
        Not negative, at least one positive.
    norm : {"entrywise", "schatten"}
        l_p norm of the entries, or of the singular values: nuclear for p = 1, Frobenius for p = 2, spectral for p = inf.

    Returns
    -------
    MarginCertificate
        With `direction` of shape (d, d).
    """
    constraints = selection_constraints(tokens, queries, selected, rhs)
    return solve(constraints, chosen_norm(norm, p, constraints.shape))
