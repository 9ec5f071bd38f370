"""Token selection over a vocabulary: constraints on scores E_s.p, one for each distinct pair of tokens.

A pair of tokens that meets in a thousand sequences gives the same constraint each time, and the difference of two embeddings
need not be written out: everything goes through the scores of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse import csgraph

from whichtoken.checks import check_sparse
from whichtoken.data.token_counts import as_counts
from whichtoken.margin.constraints import Constraints, Indices
from whichtoken.margin.rounding import rounding
from whichtoken.norms import Vector, row_norms

CHUNK = 2**22  # numbers written out at a time


@dataclass(frozen=True, eq=False)
class VocabularyConstraints:
    """Rows a_k = scale_k (E_first - E_second); <a_k, p> >= rhs_k, and = 0 on rows flagged `free`.

    Speaks the same language as `Constraints`; a subset is small enough to be written out and becomes one.
    """

    embeddings: Vector  # (|S|, d)
    pairs: Indices  # (m, 2) first and second token of every row
    free: NDArray[np.bool_]  # (m,)
    rhs: Vector  # (m,)
    scale: Vector  # (m,)

    def __len__(self) -> int:
        return len(self.pairs)

    def apply(self, weights: Vector) -> Vector:
        """<a_k, p> for every row, (m,)."""
        scores = self.embeddings @ weights
        applied: Vector = self.scale * (scores[self.pairs[:, 0]] - scores[self.pairs[:, 1]])
        return applied

    def adjoint(self, multipliers: Vector) -> Vector:
        """sum_k mu_k a_k, (d,)."""
        return self.on_tokens(multipliers) @ self.embeddings

    def apply_error(self, weights: Vector) -> Vector:
        """Bounds on what rounding has done to `apply`, (m,)."""
        sizes = np.abs(self.embeddings) @ np.abs(weights)
        return rounding(len(weights), self.scale * (sizes[self.pairs[:, 0]] + sizes[self.pairs[:, 1]]))

    def adjoint_error(self, multipliers: Vector) -> Vector:
        """Bounds on what rounding has done to `adjoint`, (d,)."""
        sizes = np.abs(multipliers) * self.scale
        on_tokens: Vector = np.zeros(len(self.embeddings))
        np.add.at(on_tokens, self.pairs, sizes[:, None])
        terms = int(np.count_nonzero(sizes) + np.count_nonzero(on_tokens))
        return rounding(terms, on_tokens @ np.abs(self.embeddings))

    def on_tokens(self, multipliers: Vector) -> Vector:
        """The w of sum_k mu_k a_k = E^T w, (|S|,)."""
        weights, size = multipliers * self.scale, len(self.embeddings)
        gained = np.bincount(self.pairs[:, 0], weights, minlength=size)
        return np.asarray(gained - np.bincount(self.pairs[:, 1], weights, minlength=size))

    def norms(self, p: float) -> Vector:
        """l_p norm of every row."""
        result = np.empty(len(self))
        portion = max(CHUNK // self.embeddings.shape[1], 1)
        for start in range(0, len(self), portion):
            part = slice(start, start + portion)
            result[part] = row_norms(self._differences(part), p)
        return result

    def subset(self, rows: NDArray[Any] | slice) -> Constraints:
        left = self._differences(rows)
        return Constraints(
            left,
            np.ones((len(left), 1)),
            self.rhs[rows],
            self.free[rows],
            self.pairs[rows],
            self.embeddings.shape[1:],
            self._compared if (self.scale[rows] == 1).all() else None,
        )

    def normalized(self) -> tuple[VocabularyConstraints, Vector]:
        """The same problem with rows of unit l_2 norm and largest right-hand side 1, and the factor of each row."""
        norms = self.norms(2)
        factor = np.divide(1.0, norms, out=np.zeros(len(self)), where=norms > 0)
        rhs = self.rhs * factor
        return replace(self, scale=self.scale * factor, rhs=rhs / (rhs.max() or 1.0)), factor

    def shaped(self, weights: Vector) -> Vector:
        return weights

    def project(self, weights: Vector) -> Vector:
        """Nearest weights that give tied tokens equal scores."""
        basis = self.tied_directions()
        return weights - (weights @ basis.T) @ basis

    def tie_rows(self) -> Indices:
        """Equalities that imply all others, as few as possible."""
        ties = np.flatnonzero(self.free)
        return ties[spanning_forest(self.pairs[ties], len(self.embeddings), np.zeros(len(ties)))]

    def tied_directions(self) -> Vector:
        """Orthonormal basis of the differences of tied tokens, (r, d)."""
        differences = self._differences(self.tie_rows())
        if len(differences) == 0:
            return np.empty((0, self.embeddings.shape[1]))
        _, singular, basis = np.linalg.svd(differences, full_matrices=False)
        kept: Vector = basis[singular > 1e-13 * singular[0]]
        return kept

    def _compared(self, pairs: Indices) -> tuple[Vector, Vector]:
        return self.embeddings[pairs[:, 0]], self.embeddings[pairs[:, 1]]

    def _differences(self, rows: Any) -> Vector:
        first, second = self.pairs[rows].T
        written: Vector = self.scale[rows][:, None] * (self.embeddings[first] - self.embeddings[second])
        return written


def vocabulary_constraints(embeddings: ArrayLike, counts: Any, selected: Any) -> VocabularyConstraints:
    """Check the input and list the distinct pairs: (first selected, unselected) token, then (first, further selected)."""
    E = np.asarray(embeddings, dtype=np.float64) + 0.0  # turns -0.0 into 0.0, which has other bytes
    counts = as_counts(counts)
    if E.ndim != 2 or len(E) != counts.shape[1] or E.shape[1] == 0:
        raise ValueError(f"embeddings of shape {E.shape} must have one row per token, ({counts.shape[1]}, d)")
    if not np.isfinite(E).all():
        raise ValueError("embeddings must hold finite numbers")
    chosen = _chosen(selected, counts)
    # tokens with equal embeddings cannot be told apart: each stands for the first of its kind
    seen: dict[bytes, int] = {}
    kind = np.array([seen.setdefault(row.tobytes(), token) for token, row in enumerate(E)])
    rows, tokens = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)), kind[counts.indices]
    size = len(E)
    taken = np.unique(rows[chosen] * size + tokens[chosen])
    all_tokens = np.unique(rows * size + tokens)
    leader = np.full(counts.shape[0], -1)
    sequences, where = np.unique(taken // size, return_index=True)
    leader[sequences] = taken[where] % size
    others = np.setdiff1d(all_tokens, taken, assume_unique=True)
    unselected = _distinct(leader[others // size], others % size, size)
    further = taken[taken % size != leader[taken // size]]
    tied = _distinct(leader[further // size], further % size, size)
    if len(unselected) == 0:
        raise ValueError("selected leaves no unselected token in any sequence: there is nothing to separate")
    pairs = np.concatenate([unselected, tied])
    free = np.arange(len(pairs)) >= len(unselected)
    return VocabularyConstraints(E, pairs, free, np.where(free, 0.0, 1.0), np.ones(len(pairs)))


def spanning_forest(pairs: Indices, size: int, preference: Vector) -> Indices:
    """Pairs that connect the same nodes as all of them do, without a cycle; those with large preference come first."""
    order = np.argsort(-preference, kind="stable")
    weight = np.empty(len(pairs))
    weight[order] = np.arange(1, len(pairs) + 1)  # a stored zero would mean no edge
    chosen = csgraph.minimum_spanning_tree(graph_of(pairs, size, weight)).data.astype(np.int64) - 1
    return np.sort(order[chosen])


def graph_of(pairs: Indices, size: int, weight: Vector | None = None) -> sparse.csr_array:
    """A graph of pairs of nodes; scipy 1.15 reads indices of 32 bits only."""
    weight = np.ones(len(pairs)) if weight is None else weight
    return sparse.csr_array((weight, tuple(pairs.astype(np.int32).T)), shape=(size, size))


def _distinct(first: Indices, second: Indices, size: int) -> Indices:
    codes = np.unique(first * size + second)
    return np.stack([codes // size, codes % size], axis=1)


def _chosen(selected: Any, counts: sparse.csr_array) -> NDArray[np.bool_]:
    """The selection as flags on the stored counts, (nnz,)."""
    n, size = counts.shape
    if sparse.issparse(selected) or (isinstance(selected, np.ndarray) and selected.ndim == 2):
        if selected.shape != counts.shape:
            raise ValueError(f"selected of shape {selected.shape} must have the shape of the counts, {counts.shape}")
        if sparse.issparse(selected):
            check_sparse("selected", selected)
        rows, tokens = selected.nonzero()
    else:
        rows, tokens = _from_sets(selected, n)
    stored = np.repeat(np.arange(n), np.diff(counts.indptr)) * size + counts.indices
    codes = np.asarray(rows, dtype=np.int64) * size + tokens
    known = np.isin(codes, stored) & (tokens >= 0) & (tokens < size)
    if not known.all():
        row, token = (int(x[~known][0]) for x in (rows, tokens))
        raise ValueError(f"selected[{row}] names token {token}, which sequence {row} does not contain")
    missing = np.setdiff1d(np.flatnonzero(np.diff(counts.indptr)), rows)
    if missing.size:
        raise ValueError(f"selected[{missing[0]}] is empty; every sequence needs at least one selected token")
    return np.isin(stored, codes)


def _from_sets(selected: Sequence[Any], n: int) -> tuple[Indices, Indices]:
    sets = [np.atleast_1d(list(s) if isinstance(s, set | frozenset) else s) for s in selected]
    if len(sets) != n:
        raise ValueError(f"selected has {len(sets)} entries for {n} sequences")
    for row, tokens in enumerate(sets):
        if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
            raise ValueError(f"selected[{row}]={tokens.tolist()} must be a token index or a set of them")
    return np.repeat(np.arange(n), [s.size for s in sets]), np.concatenate(sets).astype(np.int64)
