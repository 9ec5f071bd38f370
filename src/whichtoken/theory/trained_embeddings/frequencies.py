"""What the counts say about each token: signed frequencies, posterior differences, classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import Vector, stored_rows

# Counts are whole numbers, so zero is exact for equal lengths; with other lengths the sum of y c / T only rounds to it.
ROUNDING = 1e-12


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
    shares = _per_length(counts)
    alpha: Vector = shares.T @ signs.astype(np.float64) / counts.shape[0]
    return alpha


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
    >>> from whichtoken.theory.trained_embeddings import posterior_difference
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
        relevant: NDArray[np.bool_] = self.completely & (self.signs != 0)
        return relevant

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
    mass = np.asarray(_per_length(counts).sum(axis=0)) / counts.shape[0]
    signs = np.where(np.abs(alpha) <= ROUNDING * mass, 0.0, np.sign(alpha)).astype(np.int8)
    seen = [np.asarray((counts[labels == sign] > 0).sum(axis=0)) > 0 for sign in (-1, 1)]
    return TokenClasses(signs, seen[0] ^ seen[1], ~(seen[0] | seen[1]))


def _per_length(counts: sparse.csr_array) -> sparse.csr_array:
    """c_Xs / T_X."""
    lengths = np.asarray(counts.sum(axis=1), dtype=np.float64)
    return sparse.csr_array((counts.data / lengths[stored_rows(counts)], counts.indices, counts.indptr), counts.shape)
