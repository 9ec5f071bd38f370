"""The one-layer `<cls>` model seen through two numbers per token, its selection score a_s and its value g_s.

Attention on a data set (`attend`), what a data set says about its tokens (`signed_frequency`, `token_classes`), and which tokens
scores select, with the quantities that the theory derives from a selection. Symbols as in `trained_embeddings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import log_expit

from whichtoken.attention import pool_gradient, softmax_pool
from whichtoken.datasets.token_counts import as_counts, as_signs, row_maxima, stored_rows
from whichtoken.display.shown import Shown

# what the package does not export itself
__all__ = [
    "Attended", "TokenClasses", "dominant_share", "local_optimality", "posterior_difference", "secondary_sets",
    "selection_margin",
]  # fmt: skip

Vector = NDArray[np.float64]
# Counts are whole numbers, so zero is exact for equal lengths; with other lengths the sum of y c / T only rounds to it.
ROUNDING = 1e-12
# Training stops at a finite norm, where tokens that tie in the limit differ by a bounded amount and all others by an amount
# that grows with the norm: a token counts as tied if one occurrence of it gets at least a tenth of the largest weight.
TIE = math.log(10)


@dataclass(frozen=True, eq=False)
class Attended(Shown):
    """Softmax attention on a data set, at given scores a_s = p.E_s and values g_s = v.E_s.

    Attributes
    ----------
    counts : sparse.csr_array of shape (n, |S|)
        Token counts.
    signs : array of shape (n,)
        Labels as -1.0 or 1.0.
    log_weights : array of shape (nnz,)
        log q_Xs = log c_Xs + a_s - log sum_t c_Xt e^{a_t}, in the order of the stored counts.
    outputs : array of shape (n,)
        f_X = sum_s q_Xs g_s; 0 for an empty sequence.
    scores, values : array of shape (|S|,)
        a_s and g_s.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import attend
    >>> seen = attend(scores=[0.0, 0.0], values=[1.0, -1.0], counts=[[3, 1], [1, 1]], labels=[1, -1])
    >>> seen.outputs.tolist(), seen.losses.round(3).tolist()
    ([0.5, 0.0], [0.474, 0.693])
    """

    counts: sparse.csr_array
    signs: Vector
    log_weights: Vector
    outputs: Vector
    scores: Vector
    values: Vector

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sequence of each stored count, (nnz,)."""
        return stored_rows(self.counts)

    @cached_property
    def log_residuals(self) -> Vector:
        """log sigma(-y f), (n,)."""
        return np.asarray(log_expit(-self.signs * self.outputs))

    @property
    def losses(self) -> Vector:
        """log(1 + exp(-y f)), (n,)."""
        return np.asarray(np.logaddexp(0.0, -self.signs * self.outputs))

    def gradients(self) -> tuple[Vector, Vector]:
        """A and B, (|S|,) each: the gradients are dE_s = A_s v + B_s p, dp = E^T B and dv = E^T A."""
        counts = self.counts
        pull = -self.signs * np.exp(self.log_residuals) / len(self.signs)  # dL / df
        slopes = pool_gradient(pull, self.scores, self.values, counts.indptr, counts.data, tokens=counts.indices)
        return np.asarray(slopes.values), np.asarray(slopes.scores)


def attend(scores: ArrayLike, values: ArrayLike, counts: Any, labels: ArrayLike) -> Attended:
    """Attention weights and outputs f_X = sum_s q_Xs g_s, with q_Xs proportional to c_Xs e^{a_s} (model (1)).

    Parameters
    ----------
    scores, values : array_like of shape (|S|,)
        a_s and g_s of every token of the vocabulary.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    Attended
        Weights, outputs, losses and gradients.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import attend
    >>> attend(scores=[0.0, 5.0], values=[1.0, -1.0], counts=[[3, 1]], labels=[1]).outputs.round(3).tolist()
    [-0.96]
    """
    counts, labels = as_counts(counts), as_signs(labels)
    a, g = (np.asarray(x, dtype=np.float64) for x in (scores, values))
    for name, vector in (("scores", a), ("values", g)):
        if vector.shape != (counts.shape[1],):
            raise ValueError(f"{name} of shape {vector.shape} must have one entry per token, ({counts.shape[1]},)")
    if labels.shape != (counts.shape[0],):
        raise ValueError(f"labels of shape {labels.shape} must be one per sequence, ({counts.shape[0]},)")
    pooled = softmax_pool(a, g, counts.indptr, counts.data, tokens=counts.indices)
    signs, log_weights, outputs = (
        np.asarray(x, dtype=np.float64) for x in (labels, pooled.log_weights, pooled.outputs)
    )
    return Attended(counts, signs, log_weights, outputs, a, g)


def signed_frequency(counts: Any, labels: ArrayLike) -> Vector:
    """alpha_s = (1/n) sum_X y_X c_Xs / T_X, (|S|,): what one gradient step writes into E_s (equation (3), Lemma 2).

    The paper divides by one common length T. For sequences of different lengths each has to be divided by its own, because
    the uniform attention of the first step does so.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    array of shape (|S|,)
        alpha, positive for tokens of positive sequences.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import signed_frequency
    >>> signed_frequency(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1]).tolist()
    [0.25, -0.25, 0.0]
    """
    counts, signs = as_counts(counts), as_signs(labels)
    shares = _token_shares(counts)
    return np.asarray(shares.T @ signs.astype(np.float64) / counts.shape[0])


def posterior_difference(counts: Any, labels: ArrayLike) -> Vector:
    """P(+1 | s) - P(-1 | s) by occurrences, (|S|,), equation (37); nan for a token that never occurs.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    array of shape (|S|,)
        1 for a token that only occurs in positive sequences, -1 for one of negative ones only.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.attention import posterior_difference
    >>> posterior_difference(counts=[[3, 0, 1], [1, 2, 1]], labels=[1, -1]).tolist()
    [0.5, -1.0, 0.0]
    """
    counts, signs = as_counts(counts), as_signs(labels)
    occurrences = np.asarray(counts.sum(axis=0), dtype=np.float64)
    difference: Vector = counts.T @ signs.astype(np.float64)
    never = np.full(counts.shape[1], np.nan)
    return np.divide(difference, occurrences, out=never, where=occurrences > 0)


@dataclass(frozen=True, eq=False)
class TokenClasses(Shown):
    """Definition 1 on a data set.

    Attributes
    ----------
    signs : array of shape (|S|,)
        +1 positive, -1 negative, 0 irrelevant: the sign of the signed frequency.
    completely : array of shape (|S|,) of bool
        The token occurs with one label only.
    absent : array of shape (|S|,) of bool
        The token does not occur at all.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import token_classes
    >>> classes = token_classes(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1])
    >>> classes.signs.tolist(), classes.relevant.tolist()
    ([1, -1, 0], [True, True, False])
    """

    signs: NDArray[np.int8]
    completely: NDArray[np.bool_]
    absent: NDArray[np.bool_]

    @property
    def relevant(self) -> NDArray[np.bool_]:
        """Completely positive or completely negative, (|S|,): the set S_c of Assumption 4."""
        return np.asarray(self.completely & (self.signs != 0))

    @property
    def summary(self) -> dict[str, int]:
        """Number of tokens of each kind."""
        positive, negative = self.signs > 0, self.signs < 0
        return {
            "positive": int(positive.sum()),
            "negative": int(negative.sum()),
            "irrelevant": int((~positive & ~negative & ~self.absent).sum()),
            "completely positive": int((positive & self.completely).sum()),
            "completely negative": int((negative & self.completely).sum()),
            "absent": int(self.absent.sum()),
        }


def token_classes(counts: Any, labels: ArrayLike) -> TokenClasses:
    """Sort every token into positive, negative or irrelevant, and completely so or not (Definition 1).

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    TokenClasses
        Sign and kind of every token.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import token_classes
    >>> token_classes(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1]).signs.tolist()
    [1, -1, 0]
    """
    counts, labels = as_counts(counts), as_signs(labels)
    alpha = signed_frequency(counts, labels)
    mass = np.asarray(_token_shares(counts).sum(axis=0)) / counts.shape[0]
    signs = np.where(np.abs(alpha) <= ROUNDING * mass, 0.0, np.sign(alpha)).astype(np.int8)
    seen = [np.asarray((counts[labels == sign] > 0).sum(axis=0)) > 0 for sign in (-1, 1)]
    return TokenClasses(signs, seen[0] ^ seen[1], ~(seen[0] | seen[1]))


def _token_shares(counts: sparse.csr_array) -> sparse.csr_array:
    """c_Xs / T_X."""
    lengths = np.asarray(counts.sum(axis=1), dtype=np.float64)
    return sparse.csr_array((counts.data / lengths[stored_rows(counts)], counts.indices, counts.indptr), counts.shape)


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
    >>> from whichtoken.theory.trained_embeddings.attention import secondary_sets
    >>> secondary_sets(scores=[9.0, 5.0, 0.0], counts=[[1, 1, 1]]).toarray().astype(int).tolist()
    [[0, 1, 0]]
    """
    counts, a = as_counts(counts), np.asarray(scores, dtype=np.float64)
    return _top(a, counts, ~_stored_flags(selection_sets(a, counts, tie), counts), tie)


def _top(scores: Vector, counts: sparse.csr_array, eligible: NDArray[np.bool_], tie: float) -> sparse.csr_array:
    """Eligible stored tokens within `tie` of the best eligible score of their row."""
    stored = np.where(eligible, scores[counts.indices], -np.inf)
    best = row_maxima(stored, counts.indptr)
    chosen = eligible & (stored >= best[stored_rows(counts)] - tie)
    return token_sets(counts, chosen)


def _stored_flags(chosen: sparse.csr_array, counts: sparse.csr_array) -> NDArray[np.bool_]:
    """A set of tokens as flags on the stored counts, (nnz,)."""
    if chosen.shape != counts.shape:
        raise ValueError(f"token sets of shape {chosen.shape} must have the shape of the counts, {counts.shape}")
    keys = stored_rows(counts) * counts.shape[1] + counts.indices
    rows, tokens = chosen.nonzero()
    return np.isin(keys, rows.astype(np.int64) * counts.shape[1] + tokens)


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
    >>> from whichtoken.theory.trained_embeddings import selection_sets
    >>> from whichtoken.theory.trained_embeddings.attention import selection_margin
    >>> scores, counts = [9.0, 5.0, 0.0], [[1, 1, 1], [0, 1, 1]]
    >>> selection_margin(scores, counts, selection_sets(scores, counts))
    4.0
    """
    counts, a = as_counts(counts), np.asarray(scores, dtype=np.float64)
    chosen, stored = _stored_flags(selected, counts), a[counts.indices]
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
    >>> from whichtoken.theory.trained_embeddings import selection_sets
    >>> from whichtoken.theory.trained_embeddings.attention import local_optimality, secondary_sets
    >>> scores, counts = [9.0, 5.0, 0.0], [[1, 1, 1]]
    >>> first, second = selection_sets(scores, counts), secondary_sets(scores, counts)
    >>> local_optimality([2.0, 0.5, 0.0], counts, [1], first, second)
    1.5
    """
    counts, signs = as_counts(counts), as_signs(labels).astype(np.float64)
    rows = stored_rows(counts)
    gamma = signs[rows] * np.asarray(values, dtype=np.float64)[counts.indices]
    chosen, second = _stored_flags(selected, counts), _stored_flags(secondary, counts)
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
    >>> from whichtoken.theory.trained_embeddings.attention import dominant_share
    >>> direction = np.array([1.0, 0.5, 0.0])
    >>> share = [dominant_share(size * direction, [2.0, 0.5, 0.0], [[1, 1, 1]], [1], direction) for size in (8, 40)]
    >>> share[0] < share[1], round(share[1], 4)
    (True, 1.0)
    """
    attention = attend(scores, values, counts, labels)
    counts, rows = attention.counts, attention.rows
    a_hat, g = np.asarray(direction, dtype=np.float64)[counts.indices], attention.values[counts.indices]
    gamma = attention.signs[rows] * g
    first = _stored_flags(selection_sets(scores, counts, tie), counts)
    second = _stored_flags(secondary_sets(scores, counts, tie), counts)
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


def token_sets(counts: sparse.csr_array, chosen: NDArray[np.bool_]) -> sparse.csr_array:
    """The flagged ones of the stored counts, (n, |S|) of bool."""
    flags = (chosen, counts.indices.copy(), counts.indptr.copy())  # dropping the zeros would edit the counts
    sets = sparse.csr_array(flags, counts.shape)
    sets.eliminate_zeros()
    return sets
