"""Documents as token counts: all that the one-layer `<cls>` model sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.checks import as_csr
from whichtoken.display.shown import Shown

LARGEST = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class TokenCounts(Shown):
    """How often each token occurs in each document, and the label of each document.

    Parameters
    ----------
    counts : array of shape (n, |S|)
        Anything that `scipy.sparse.csr_array` accepts; kept as int32 with sorted indices and without stored zeros.
    labels : array of shape (n,)
        -1 or +1.
    vocabulary : sequence of str, optional
        Name of each token, (|S|,).

    Examples
    --------
    >>> from whichtoken.datasets import TokenCounts
    >>> documents = TokenCounts.from_sequences([[0, 2, 2], [1]], labels=[1, -1])
    >>> documents.counts.toarray().tolist(), documents.lengths.tolist()
    ([[1, 0, 2], [0, 1, 0]], [3, 1])
    """

    counts: sparse.csr_array
    labels: NDArray[np.int8]
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        counts = as_counts(self.counts)
        labels = as_signs(self.labels)
        if labels.shape != (counts.shape[0],):
            raise ValueError(f"labels of shape {labels.shape} must be one per document, ({counts.shape[0]},)")
        if self.vocabulary is not None and len(self.vocabulary) != counts.shape[1]:
            raise ValueError(f"vocabulary of {len(self.vocabulary)} words must name all {counts.shape[1]} tokens")
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "vocabulary", None if self.vocabulary is None else tuple(self.vocabulary))

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[ArrayLike] | NDArray[Any],
        labels: ArrayLike,
        *,
        size: int | None = None,
        vocabulary: Sequence[str] | None = None,
    ) -> Self:
        """Count token ids.

        `sequences` is an array (n, T) or a list of arrays (T_i,); `size` is |S|, the largest id + 1 unless given.
        """
        rows = [np.asarray(row) for row in sequences]
        filled = [row.ravel() for row in rows if row.size]  # an empty list has the type float
        ids = np.concatenate(filled) if filled else np.empty(0, np.int64)
        if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0):
            raise ValueError(f"sequences of type {ids.dtype} must hold token ids, whole numbers of 0 or more")
        known = (
            size if size is not None else len(vocabulary) if vocabulary is not None else int(ids.max(initial=-1)) + 1
        )
        if ids.size and ids.max() >= known:
            raise ValueError(f"sequences hold token id {ids.max()}, the vocabulary has only {known} tokens")
        counts = count_ids(np.repeat(np.arange(len(rows)), [row.size for row in rows]), ids, (len(rows), known))
        return cls(counts, np.asarray(labels), None if vocabulary is None else tuple(vocabulary))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, repetitions included, (n,)."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def subset(self, rows: ArrayLike) -> Self:
        """The documents of an index array, a mask or a slice."""
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        return type(self)(self.counts[chosen], self.labels[chosen], self.vocabulary)

    def __len__(self) -> int:
        return int(self.counts.shape[0])


def count_ids(rows: NDArray[Any], ids: NDArray[Any], shape: tuple[int, int]) -> sparse.csr_array:
    """How often each (row, id) occurs."""
    ones = np.ones(len(ids), dtype=np.int32)
    counts = sparse.coo_array((ones, (rows.astype(np.int32), ids.astype(np.int32))), shape=shape).tocsr()
    counts.sum_duplicates()
    return counts


def as_counts(counts: Any) -> sparse.csr_array:
    """Whole numbers >= 0, (n, |S|), as int32 csr_array with sorted indices; a view where that is already so."""
    matrix = as_csr("counts", counts if sparse.issparse(counts) else np.asarray(counts))
    if matrix.ndim != 2:
        raise ValueError(f"counts of shape {matrix.shape} must have two axes, documents and tokens")
    values = matrix.data
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or (values != np.floor(values)).any():
        raise ValueError(f"counts of type {values.dtype} must be whole numbers")
    if values.min(initial=0) < 0:
        raise ValueError(f"counts hold {values.min()}, a token cannot occur less than 0 times")
    if values.max(initial=0) > LARGEST:
        raise ValueError(f"counts hold {values.max()}, the largest that is accepted is {LARGEST}")
    matrix = matrix.astype(np.int32, copy=False)
    if not matrix.has_canonical_format or (values == 0).any():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix


def as_signs(labels: Any) -> NDArray[np.int8]:
    """Labels as int8, (n,); only -1 and +1 are accepted."""
    values = np.asarray(labels)
    strange = [value for value in np.unique(values).tolist() if value not in (-1, 1)]
    if strange:
        raise ValueError(f"labels hold {', '.join(map(repr, strange[:4]))}; only -1 and +1 are accepted")
    return values.astype(np.int8)
