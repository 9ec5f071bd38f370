"""The one-layer `<cls>` model seen through two numbers per token: its selection score and its value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import log_expit

from whichtoken.attention import pool_gradient, softmax_pool
from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown

Vector = NDArray[np.float64]


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
        residuals: Vector = log_expit(-self.signs * self.outputs)
        return residuals

    @property
    def losses(self) -> Vector:
        """log(1 + exp(-y f)), (n,)."""
        losses: Vector = np.logaddexp(0.0, -self.signs * self.outputs)
        return losses

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


def token_sets(counts: sparse.csr_array, chosen: NDArray[np.bool_]) -> sparse.csr_array:
    """The flagged ones of the stored counts, (n, |S|) of bool."""
    flags = (chosen, counts.indices.copy(), counts.indptr.copy())  # dropping the zeros would edit the counts
    sets = sparse.csr_array(flags, counts.shape)
    sets.eliminate_zeros()
    return sets


def stored_rows(counts: sparse.csr_array) -> NDArray[np.int64]:
    """Row of each stored entry, (nnz,)."""
    return np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))


def row_maxima(entries: Vector, indptr: NDArray[Any]) -> Vector:
    """Largest entry of each row, -inf for empty ones, (n,)."""
    filled = np.diff(indptr) > 0
    maxima = np.full(len(filled), -np.inf)
    if filled.any():
        maxima[filled] = np.maximum.reduceat(entries, indptr[:-1][filled])
    return maxima
