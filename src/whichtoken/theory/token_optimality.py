"""Whether the tokens that attention selects are the best ones: by score in every sequence, or among the support."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def locally_optimal(token_scores: ArrayLike, selected: ArrayLike, support: ArrayLike) -> bool:
    """Whether the selected token of every sequence has a higher token score than each of its support tokens.

    Only then is W_mm a direction that descent can converge to (Tarzanagh et al., arXiv 2306.13596).

    Parameters
    ----------
    token_scores : array_like of shape (n, T)
        Label times decoder output of every token.
    selected : array_like of shape (n,)
        Token index of each sequence.
    support : array_like
        Indices of the constraints with a positive multiplier, counted by sequence and, within it, by unselected token.

    Returns
    -------
    bool
        Whether the limit attracts descent.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import locally_optimal
    >>> locally_optimal(token_scores=[[3.0, 1.0, 5.0]], selected=[0], support=[0])  # beats token 1, which is the support
    True
    """
    gamma, alpha = _scores_and_selection(token_scores, selected)
    chosen = np.take_along_axis(gamma, alpha[:, None], axis=1)  # (n, 1)
    unselected = np.arange(gamma.shape[1]) != alpha[:, None]  # (n, T)
    advantages = (chosen - gamma)[unselected]  # (n (T-1),), in the order of the constraints
    return bool(np.all(advantages[np.asarray(support, dtype=np.intp)] > 0.0))


def globally_optimal(token_scores: ArrayLike, selected: ArrayLike) -> bool:
    """Whether every sequence selects a token of the highest token score.

    Parameters
    ----------
    token_scores : array_like of shape (n, T)
        Label times decoder output of every token.
    selected : array_like of shape (n,)
        Token index of each sequence.

    Returns
    -------
    bool
        Whether the selection is the best one.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import globally_optimal
    >>> globally_optimal([[3.0, 1.0, 5.0]], [0]), globally_optimal([[3.0, 1.0, 5.0]], [2])
    (False, True)
    """
    gamma, alpha = _scores_and_selection(token_scores, selected)
    return bool(np.all(np.take_along_axis(gamma, alpha[:, None], axis=1)[:, 0] == gamma.max(axis=1)))


def _scores_and_selection(token_scores: ArrayLike, selected: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    gamma, alpha = np.asarray(token_scores, dtype=np.float64), np.asarray(selected, dtype=np.intp)
    if gamma.ndim != 2 or alpha.shape != gamma.shape[:1]:
        raise ValueError(f"token_scores {gamma.shape} and selected {alpha.shape} must have shapes (n, T) and (n,)")
    return gamma, alpha
