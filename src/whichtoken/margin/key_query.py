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
    return solve(constraints, chosen_norm(norm, p, constraints.shape))
