"""What a fit sees of its documents: amounts of tokens, labels and weights, and the attention that they get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.attention import pool_weights

Array = NDArray[np.float64]

BLOCK = 1 << 16  # documents worked on together, where that saves temporary arrays
CELLS = 1 << 22  # counts, likewise


@dataclass(frozen=True, eq=False)
class Documents:
    """Amounts include the start of the attention, so that selection scores start from 0 and a ridge pulls them there."""

    amounts: sparse.csr_array  # (n, |S|)
    labels: NDArray[np.int64]  # number of the class, (n,)
    weights: Array  # (n,)
    classes: int

    @property
    def outputs(self) -> int:
        """One for two classes, otherwise one per class."""
        return 1 if self.classes == 2 else self.classes

    @property
    def targets(self) -> Array:
        """1 for the class of a document, (n, outputs)."""
        if self.classes == 2:
            return self.labels[:, None].astype(np.float64)
        return np.eye(self.classes)[self.labels]

    @property
    def mean_mass(self) -> float:
        """Mean over documents of the sum of their amounts: the unit of the null token."""
        return float(np.mean(self.amounts.sum(axis=1))) or 1.0

    def part(self, rows: NDArray[np.int64]) -> Documents:
        """Some of them."""
        return Documents(self.amounts[rows], self.labels[rows], self.weights[rows], self.classes)


def attention_shares(amounts: sparse.csr_array, selection: Array, log_null: float) -> sparse.csr_array:
    """Attention of every token of every document, (n, queries * |S|): the features of the values."""
    heads = []
    for scores in np.ascontiguousarray(selection.T):
        shares = np.empty(len(amounts.data))
        for first in range(0, amounts.shape[0], BLOCK):
            starts = amounts.indptr[first : first + BLOCK + 1]
            cells = slice(starts[0], starts[-1])
            shares[cells] = pool_weights(
                scores, starts - starts[0], amounts.data[cells], log_null, tokens=amounts.indices[cells]
            )
        heads.append(sparse.csr_array((shares, amounts.indices, amounts.indptr), shape=amounts.shape))
    return heads[0] if len(heads) == 1 else sparse.csr_array(sparse.hstack(heads, format="csr"))


def row_blocks(matrix: sparse.csr_array) -> Iterator[sparse.csr_array]:
    """Some rows at a time, for sums whose temporary arrays would else be as large as the matrix."""
    for start in range(0, matrix.shape[0], BLOCK):
        yield matrix[start : start + BLOCK]
