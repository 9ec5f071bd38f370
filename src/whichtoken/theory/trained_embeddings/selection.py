"""Which tokens a `<cls>` vector selects, which come second, and whether the choice is locally optimal.

Everything is a function of scores a_s = p.E_s; sets of tokens are boolean csr_arrays of the shape of the counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.theory.trained_embeddings.attention import Vector, attend, row_maxima, stored_rows, token_sets

# Training stops at a finite norm, where tokens that tie in the limit differ by a bounded amount and all others by an amount
# that grows with the norm: a token counts as tied if one occurrence of it gets at least a tenth of the largest weight.
TIE = math.log(10)


def selection_sets(scores: ArrayLike, counts: Any, tie: float = TIE) -> sparse.csr_array:
    """S_X(p), equation (8): the tokens of each sequence whose score is within `tie` of the largest, (n, |S|) of bool.

    Parameters
    ----------
    scores : array_like of shape (|S|,)
        a_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    tie : float, default=2.302585092994046
        Difference in score up to which a token still counts as tied; log 10 by default.

    Returns
    -------
    sparse.csr_array of shape (n, |S|)
        True where a token is selected.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import selection_sets
    >>> selection_sets(scores=[9.0, 8.0, 0.0], counts=[[1, 1, 1], [0, 0, 2]]).toarray().astype(int).tolist()
    [[1, 1, 0], [0, 0, 1]]
    """
    counts = as_counts(counts)
    return _top(np.asarray(scores, dtype=np.float64), counts, np.ones(counts.nnz, dtype=bool), tie)


def secondary_sets(scores: ArrayLike, counts: Any, tie: float = TIE) -> sparse.csr_array:
    """S^2_X(p), Definition 15: the tokens within `tie` of the largest score outside S_X(p), (n, |S|) of bool.

    Parameters
    ----------
    scores : array_like of shape (|S|,)
        a_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    tie : float, default=2.302585092994046
        Difference in score up to which a token still counts as tied; log 10 by default.

    Returns
    -------
    sparse.csr_array of shape (n, |S|)
        True where a token comes second.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import secondary_sets
    >>> secondary_sets(scores=[9.0, 5.0, 0.0], counts=[[1, 1, 1]]).toarray().astype(int).tolist()
    [[0, 1, 0]]
    """
    counts, a = as_counts(counts), np.asarray(scores, dtype=np.float64)
    return _top(a, counts, ~_stored(selection_sets(a, counts, tie), counts), tie)


def remaining_sets(scores: ArrayLike, counts: Any, tie: float = TIE) -> sparse.csr_array:
    """S^<_X(p), equation (21): the tokens of each sequence that are neither first nor second, (n, |S|) of bool.

    Parameters
    ----------
    scores : array_like of shape (|S|,)
        a_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    tie : float, default=2.302585092994046
        Difference in score up to which a token still counts as tied; log 10 by default.

    Returns
    -------
    sparse.csr_array of shape (n, |S|)
        True where a token comes third or later.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import remaining_sets
    >>> remaining_sets(scores=[9.0, 5.0, 0.0], counts=[[1, 1, 1]]).toarray().astype(int).tolist()
    [[0, 0, 1]]
    """
    counts = as_counts(counts)
    first, second = (_stored(sets(scores, counts, tie), counts) for sets in (selection_sets, secondary_sets))
    return token_sets(counts, ~(first | second))


def selection_margin(scores: ArrayLike, counts: Any, selected: sparse.csr_array) -> float:
    """Smallest score of a selected token minus largest of an unselected one, over all sequences; inf if none has both.

    The solution of the max-margin problem (9) attains exactly 1 (Lemma 20: some constraint is tight).

    Parameters
    ----------
    scores : array_like of shape (|S|,)
        a_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    selected : sparse.csr_array of shape (n, |S|)
        True where a token is selected.

    Returns
    -------
    float
        The margin.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import selection_margin, selection_sets
    >>> scores, counts = [9.0, 5.0, 0.0], [[1, 1, 1], [0, 1, 1]]
    >>> selection_margin(scores, counts, selection_sets(scores, counts))
    4.0
    """
    counts, a = as_counts(counts), np.asarray(scores, dtype=np.float64)
    chosen, stored = _stored(selected, counts), a[counts.indices]
    lowest = -row_maxima(np.where(chosen, -stored, -np.inf), counts.indptr)
    highest = row_maxima(np.where(chosen, -np.inf, stored), counts.indptr)
    return float(np.min(lowest - highest, initial=np.inf))


def local_optimality(
    values: ArrayLike, counts: Any, labels: ArrayLike, selected: sparse.csr_array, secondary: sparse.csr_array
) -> float:
    """mu of Definition 16: min over X and j in S^2_X of sum_{i in S_X} (gamma_i - gamma_j); locally optimal if positive.

    gamma_s = y v.E_s; inf if no sequence has a secondary token.

    Parameters
    ----------
    values : array_like of shape (|S|,)
        g_s = v.E_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    selected, secondary : sparse.csr_array of shape (n, |S|)
        S_X and S^2_X, as from `selection_sets` and `secondary_sets`.

    Returns
    -------
    float
        mu.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import local_optimality, secondary_sets, selection_sets
    >>> scores, counts = [9.0, 5.0, 0.0], [[1, 1, 1]]
    >>> first, second = selection_sets(scores, counts), secondary_sets(scores, counts)
    >>> local_optimality([2.0, 0.5, 0.0], counts, [1], first, second)
    1.5
    """
    counts, signs = as_counts(counts), as_signs(labels).astype(np.float64)
    rows = stored_rows(counts)
    gamma = signs[rows] * np.asarray(values, dtype=np.float64)[counts.indices]
    chosen, second = _stored(selected, counts), _stored(secondary, counts)
    size = np.bincount(rows, chosen, minlength=len(signs))
    total = np.bincount(rows, chosen * gamma, minlength=len(signs))
    return float(np.min((total[rows] - size[rows] * gamma)[second], initial=np.inf))


def dominant_share(
    scores: ArrayLike, values: ArrayLike, counts: Any, labels: ArrayLike, direction: ArrayLike, tie: float = TIE
) -> float:
    """Share of -p-hat.grad L that comes from pairs (selected, secondary), which tends to 1 as |p| grows (Lemma 17).

    The sums over pairs are those of Lemma 8, taken in the log domain, where no factor under- or overflows.

    Parameters
    ----------
    scores, values : array_like of shape (|S|,)
        a_s and g_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    direction : array_like of shape (|S|,)
        Scores of the limit direction, p-hat.E_s.
    tie : float, default=2.302585092994046
        Difference in score up to which a token still counts as tied; log 10 by default.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import dominant_share
    >>> direction = np.array([1.0, 0.5, 0.0])
    >>> share = [dominant_share(size * direction, [2.0, 0.5, 0.0], [[1, 1, 1]], [1], direction) for size in (8, 40)]
    >>> share[0] < share[1], round(share[1], 4)
    (True, 1.0)
    """
    attention = attend(scores, values, counts, labels)
    counts, rows = attention.counts, attention.rows
    a_hat, g = np.asarray(direction, dtype=np.float64)[counts.indices], attention.values[counts.indices]
    gamma = attention.signs[rows] * g
    first = _stored(selection_sets(scores, counts, tie), counts)
    second = _stored(secondary_sets(scores, counts, tie), counts)
    scale = max(
        (attention.log_residuals[x] + np.sort(attention.log_weights[slice(*span)])[-2:].sum())
        for x, span in enumerate(zip(counts.indptr[:-1], counts.indptr[1:], strict=True))
        if span[1] - span[0] > 1
    )
    total = dominant = 0.0
    for x, (start, stop) in enumerate(zip(counts.indptr[:-1], counts.indptr[1:], strict=True)):
        part = slice(start, stop)
        log_pair = attention.log_residuals[x] + np.add.outer(attention.log_weights[part], attention.log_weights[part])
        np.fill_diagonal(log_pair, -np.inf)  # no pair, and larger than any
        terms = np.exp(log_pair - scale) * np.subtract.outer(a_hat[part], a_hat[part])
        terms *= np.subtract.outer(gamma[part], gamma[part])
        total += terms.sum() / 2
        dominant += terms[np.ix_(first[part], second[part])].sum()
    return float(dominant / total)


def _top(scores: Vector, counts: sparse.csr_array, eligible: NDArray[np.bool_], tie: float) -> sparse.csr_array:
    """Eligible stored tokens within `tie` of the best eligible score of their row."""
    stored = np.where(eligible, scores[counts.indices], -np.inf)
    best = row_maxima(stored, counts.indptr)
    chosen = eligible & (stored >= best[stored_rows(counts)] - tie)
    return token_sets(counts, chosen)


def _stored(chosen: sparse.csr_array, counts: sparse.csr_array) -> NDArray[np.bool_]:
    """A set of tokens as flags on the stored counts, (nnz,)."""
    if chosen.shape != counts.shape:
        raise ValueError(f"token sets of shape {chosen.shape} must have the shape of the counts, {counts.shape}")
    keys = stored_rows(counts) * counts.shape[1] + counts.indices
    rows, tokens = chosen.nonzero()
    return np.isin(keys, rows.astype(np.int64) * counts.shape[1] + tokens)
