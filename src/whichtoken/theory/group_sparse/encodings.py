"""What the theory asks of positional encodings, and the block of W that it predicts from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_count, check_range
from whichtoken.errors import unknown


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


Array = NDArray[np.float64]


def positional_encodings(
    kind: str, groups: int, norm2: float | None = None, rng: np.random.Generator | None = None
) -> Array:
    """Encodings of one family, shape (groups, groups).

    Parameters
    ----------
    kind : str
        A key of `FAMILIES`: `sine`, `one-hot`, `random`, `random-unit`, `sin-cos` or `none`.
    groups : int
        D >= 2.
    norm2 : float, optional
        Mean squared norm to scale to. By default that of the sine family, (groups + 1)/2; one-hot vectors keep norm one.
    rng : numpy.random.Generator, optional
        Needed by the random families.
    """
    check_count("groups", groups, 2)
    if kind not in FAMILIES:
        raise unknown("encoding", kind, FAMILIES)
    if rng is None and kind.startswith("random"):
        raise ValueError(f"encoding '{kind}' needs rng, a numpy.random.Generator")
    encodings = FAMILIES[kind](groups, rng or np.random.default_rng(0))
    if norm2 is None or kind == "none":
        return encodings
    check_range("norm2", norm2, 0.0, math.inf)
    return float(np.sqrt(norm2 / np.mean(np.sum(encodings**2, axis=1)))) * encodings


def sine(groups: int, rng: np.random.Generator) -> Array:
    """sin(pi j k/(D+1)), orthogonal with squared norm (D+1)/2."""
    index = np.arange(1, groups + 1)
    return np.sin(np.pi * np.outer(index, index) / (groups + 1))


def random(groups: int, rng: np.random.Generator) -> Array:
    """Independent normal entries, squared norm (D+1)/2 on average: neither orthogonal nor of equal norm."""
    return math.sqrt((groups + 1) / (2 * groups)) * rng.standard_normal((groups, groups))


def random_unit(groups: int, rng: np.random.Generator) -> Array:
    """Random directions of equal norm: only orthogonality is missing."""
    return _scale_rows(rng.standard_normal((groups, groups)), (groups + 1) / 2)


def sin_cos(groups: int, rng: np.random.Generator) -> Array:
    """The table of sines and cosines at geometric frequencies of Vaswani et al. 2017: neighbors are alike."""
    frequency = 10_000.0 ** (-2 * (np.arange(groups) // 2) / groups)
    angle = np.outer(np.arange(groups), frequency)
    return _scale_rows(np.where(np.arange(groups) % 2 == 0, np.sin(angle), np.cos(angle)), (groups + 1) / 2)


FAMILIES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "sine": sine,
    # orthogonal with norm one
    "one-hot": lambda groups, rng: np.eye(groups),
    "random": random,
    "random-unit": random_unit,
    "sin-cos": sin_cos,
    # the model cannot tell the groups apart
    "none": lambda groups, rng: np.zeros((groups, groups)),
}


def _scale_rows(rows: Array, norm2: float) -> Array:
    return np.asarray(rows * np.sqrt(norm2 / np.sum(rows**2, axis=1, keepdims=True)))
