"""What the theory asks of positional encodings, and the block of W that it predicts from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def encoding_norm2(encodings: ArrayLike) -> float:
    """Squared norm c of orthogonal encodings of equal norm, the only way in which they enter the dynamics.

    Parameters
    ----------
    encodings : array, shape (groups, encoding_dim)
        Row j is p_j.

    Returns
    -------
    float
        c.

    Raises
    ------
    ValueError
        If p_i.p_j is not c delta_ij: Theorem 3.2 of arXiv 2504.08638 and the population map do not apply then.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.group_sparse import encoding_norm2
    >>> encoding_norm2(2 * np.eye(3))
    4.0
    """
    rows = np.asarray(encodings, dtype=float)
    if rows.ndim != 2 or rows.shape[0] < 2:
        raise ValueError(f"encodings of shape {rows.shape} must be (groups, encoding_dim) with at least 2 groups")
    gram = rows @ rows.T
    norm2 = float(np.trace(gram)) / len(rows)
    deviation = float(np.abs(gram - norm2 * np.eye(len(rows))).max())
    if not (norm2 > 0 and deviation <= 1e-9 * norm2):  # also refuses nan
        raise ValueError(
            "encodings must be orthogonal with equal norms for Theorem 3.2 and the population map; their Gram matrix"
            f" is off by {deviation:.3g} at mean squared norm {norm2:.3g}"
        )
    return norm2


def positional_block(encodings: ArrayLike, relevant: int, gap: float) -> NDArray[np.float64]:
    """W_22 of the position-only population map, shape (encoding_dim, encoding_dim).

    gap/(c^2 D) (sum_{j != j*} (p_j* - p_j)) (sum_j p_j)^T with c the mean squared norm: exact for orthogonal encodings,
    whose scores it separates by `gap`; for others only the direction to compare with (Lemma 5.1 of arXiv 2504.08638).

    Parameters
    ----------
    encodings : array_like of shape (groups, encoding_dim)
        Row j is p_j.
    relevant : int
        j*, the relevant group.
    gap : float
        Score of the relevant group minus score of any other.

    Returns
    -------
    array of shape (encoding_dim, encoding_dim)
        W_22.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.group_sparse import positional_block
    >>> encodings = np.eye(3)
    >>> scores = encodings @ positional_block(encodings, relevant=0, gap=6.0) @ encodings.T
    >>> (scores[0] - scores[1]).round(6).tolist()  # the gap, for every query
    [6.0, 6.0, 6.0]
    """
    rows = np.asarray(encodings, dtype=float)
    groups = len(rows)
    if not 0 <= relevant < groups:
        raise ValueError(f"relevant={relevant} must be a group index in 0..{groups - 1}")
    norm2 = np.mean(np.sum(rows**2, axis=1))
    if norm2 == 0:  # no encodings: nothing to tell the groups apart by
        return np.zeros((rows.shape[1], rows.shape[1]))
    total = rows.sum(axis=0)
    return np.outer(gap / (norm2**2 * groups) * (groups * rows[relevant] - total), total)
