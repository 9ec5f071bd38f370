"""Token selection as linear constraints <a_k, W> >= b_k, and what a method returns for them.

Row k says that the selected token of a sequence outscores one unselected token t: a_k = (x_selected - x_t) z^T with the
query z of that sequence. A prompt has no query; it is the same problem with the number 1 as query. `Constraints` stores
only the two factors, so a key-query problem of m rows in d x d unknowns costs m (2 d) numbers, not m d^2.

Over a vocabulary, a pair of tokens that meets in a thousand sequences gives the same constraint each time.
`VocabularyConstraints` has one row for each distinct pair, and works with the scores E_s.p of the tokens: the difference of
two embeddings is not written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse import csgraph

from whichtoken.checks import check_sparse
from whichtoken.datasets.token_counts import as_counts
from whichtoken.margin.geometry import exact_difference, rounding
from whichtoken.norms import Vector, row_norms

Indices = NDArray[np.int64]
# Up to this many numbers the rows are written out: one product of small dense matrices beats a loop over sequences.
DENSE = 2**17
CHUNK = 2**22  # numbers written out at a time
# Rounding in a Gram matrix; a smaller ridge has no effect.
FLOOR = 1e-15


@dataclass(frozen=True)
class Solution:
    """Weights and multipliers that a method proposes, each up to a positive factor; the certificate checks them."""

    weights: Vector  # (columns,)
    multipliers: Vector  # (rows,)


@dataclass(frozen=True)
class Farkas:
    """Multipliers that combine the rows to zero, up to rounding, but their right-hand sides to something positive.

    If the combination is zero exactly, no weights exist; `exact.is_infeasible` proves that or not.
    """

    multipliers: Vector  # (rows,)


def cholesky(matrix: Vector, ridge: Vector | float) -> Callable[[Vector], Vector]:
    """Solver of (matrix + diag(ridge)) x = r; overwrites `matrix`. Raises LinAlgError if it is not positive definite."""
    if matrix.size == 0:
        return lambda r: r
    diagonal = np.einsum("ii->i", matrix)
    diagonal += ridge + FLOOR * diagonal.max()
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)  # .T is in LAPACK's order: no copy
    if failed:
        raise np.linalg.LinAlgError("not positive definite")
    return lambda r: lapack.dpotrs(factor, r, lower=1)[0]


@dataclass(frozen=True)
class Constraints:
    """Rows a_k = left_k right_k^T with right-hand sides; rows flagged `free` are equalities <a_k, W> = 0."""

    left: Vector  # (m, d)
    right: Vector  # (m, e)
    rhs: Vector  # (m,)
    free: NDArray[np.bool_]  # (m,)
    pairs: Indices  # (m, 2) sequence and token; rows of one sequence share `right`
    shape: tuple[int, ...]  # of a direction: (d,) or (d, e)
    # the tokens of pairs (m, 2), whose rounded differences are `left`
    tokens: Callable[[Indices], tuple[Vector, Vector]] | None = None

    @cached_property
    def columns(self) -> int:
        return int(self.left.shape[1] * self.right.shape[1])

    def __len__(self) -> int:
        return len(self.left)

    @cached_property
    def dense(self) -> Vector:
        """All rows written out, (m, d e)."""
        if self.right.shape[1] == 1:  # then `right` is one
            return self.left
        return (self.left[:, :, None] * self.right[:, None, :]).reshape(len(self), self.columns)

    @cached_property
    def small(self) -> bool:
        """Whether the rows are worth writing out."""
        return self.right.shape[1] == 1 or len(self) * self.columns <= DENSE

    def apply(self, weights: Vector) -> Vector:
        """<a_k, W> for every row, (m,)."""
        if self.small:
            return self.dense @ weights
        queries, _, run = self._queries
        images = queries @ weights.reshape(self.left.shape[1], self.right.shape[1]).T  # one for each run of rows
        return np.asarray(np.einsum("kd,kd->k", self.left, images[run]))

    def adjoint(self, multipliers: Vector) -> Vector:
        """sum_k mu_k a_k, flattened."""
        if self.small:
            return multipliers @ self.dense
        queries, begins, _ = self._queries
        return np.asarray(np.add.reduceat(self.left * multipliers[:, None], begins).T @ queries).ravel()

    def apply_error(self, weights: Vector) -> Vector:
        """Bounds on what rounding, from the tokens on, has done to `apply`, (m,)."""
        terms = self.columns if self.small else sum(self.left.shape[1:] + self.right.shape[1:])
        return rounding(terms, self._magnitudes().apply(np.abs(weights)), 1 + np.abs(self.right).max())

    def adjoint_error(self, multipliers: Vector) -> Vector:
        """Bounds on what rounding, from the tokens on, has done to `adjoint`, (d e,)."""
        sizes = np.abs(multipliers)
        return rounding(int(np.count_nonzero(sizes)), self._magnitudes().adjoint(sizes), 1 + np.abs(self.right).max())

    def _magnitudes(self) -> Constraints:
        return replace(self, left=np.abs(self.left), right=np.abs(self.right), tokens=None)

    def gram(self, scale: Vector | None = None, swapped: Vector | None = None) -> Vector:
        """<a_k, scale * a_l + swapped * a_l^T> for all pairs of rows, (m, m); without scale <a_k, a_l>.

        Both factors are given entry by entry, (d e,); the second one, for square rows, is symmetric and defaults to zero.
        """
        if scale is None:
            return self.dense @ self.dense.T if self.small else (self.left @ self.left.T) * (self.right @ self.right.T)
        shape = self.left.shape[1], self.right.shape[1]
        if not self.small:
            swaps = None if swapped is None else swapped.reshape(shape)
            return scaled_gram(self.left, *self._queries[::2], scale.reshape(shape), swaps)  # type: ignore[no-any-return]
        image = self.dense * scale
        if swapped is not None:
            turned = self.dense.reshape(-1, *shape).swapaxes(1, 2).reshape(len(self), -1)
            image = image + turned * swapped
        return image @ self.dense.T

    def product_gram(self, own: Vector, mixed: Vector, other: Vector) -> Vector:
        """<a_k, own a_l other + mixed a_l^T mixed> for all pairs of rows, (m, m); `own` and `other` are positive definite."""
        queries, _, block = self._queries
        rooted = self.left @ np.linalg.cholesky(own)
        gram: Vector = rooted @ rooted.T  # BLAS computes one half
        add_products(gram, queries @ other @ queries.T, self.left @ mixed @ queries.T, block)
        return gram

    @cached_property
    def _queries(self) -> tuple[Vector, Indices, Indices]:
        """Queries of runs of rows that share one, (runs, e), the first row of each run, and the run of every row, (m,)."""
        sequence = self.pairs[:, 0]
        first = np.concatenate([[True], sequence[1:] != sequence[:-1]])
        begins = first.nonzero()[0]
        return self.right[begins], begins, first.cumsum() - 1

    def norms(self, p: float) -> Vector:
        """l_p norm of every row; a rank-one matrix has the product of its factors' norms."""
        return row_norms(self.left, p) * row_norms(self.right, p)

    def subset(self, rows: NDArray[Any] | slice) -> Constraints:
        left, right = self.left[rows], self.right[rows]
        return Constraints(left, right, self.rhs[rows], self.free[rows], self.pairs[rows], self.shape, self.tokens)

    def rounding_loss(self) -> Vector:
        """What rounding took from `left`, (m, d): together they are the differences of the tokens exactly."""
        return np.zeros_like(self.left) if self.tokens is None else exact_difference(*self.tokens(self.pairs))[1]

    def normalize(self) -> tuple[Constraints, Vector]:
        """The same problem with rows of unit l_2 norm and largest right-hand side 1, and the factor of each row."""
        norms = self.norms(2)
        factor = np.divide(1.0, norms, out=np.zeros(len(self)), where=norms > 0)
        rhs = self.rhs * factor
        left = self.left * factor[:, None]
        return replace(self, left=left, tokens=None, rhs=rhs / (rhs.max() or 1.0)), factor

    def replace_rhs(self, rhs: ArrayLike) -> Constraints:
        """New right-hand sides for the inequalities."""
        values = np.zeros(len(self))
        values[~self.free] = rhs
        return replace(self, rhs=values)

    def reshape(self, weights: Vector) -> Vector:
        return weights.reshape(self.shape)

    def project(self, weights: Vector) -> Vector:
        """Nearest weights that meet the equalities."""
        if not self.free.any():
            return weights
        equalities = self.subset(self.free)
        correction, *_ = np.linalg.lstsq(equalities.dense, equalities.apply(weights), rcond=None)
        return weights - correction


@njit(cache=True)
def scaled_gram(left: Any, queries: Any, run: Any, scale: Any, swapped: Any) -> Any:
    """`Constraints.gram` of rows left_k queries_(run k)^T, (m, m), for factors (d, e).

    Rows of one sequence share their query, which splits off the sum over its e entries: m^2 d work, not m^2 d e.
    """
    gram, columns = np.empty((len(run), len(run))), np.ascontiguousarray(scale.T)
    start = 0
    for i in range(len(queries)):
        stop = int(np.searchsorted(run, i + 1))
        mixed = np.dot(queries[i:] * queries[i], columns)  # (runs from i on, d)
        later = np.empty((len(run) - start, left.shape[1]))
        if swapped is not None:
            later = np.dot(left[start:], (queries[i] * swapped).T)
        for k in range(start, len(run)):
            for j in range(left.shape[1]):
                turned = 0.0 if swapped is None else later[k - start, j] * queries[run[k], j]
                later[k - start, j] = turned + left[k, j] * mixed[run[k] - i, j]
        block = np.dot(left[start:stop], later.T)
        gram[start:stop, start:] = block
        gram[start:, start:stop] = block.T
        start = stop
    return gram


@njit(cache=True)
def add_products(gram: NDArray[Any], between: NDArray[Any], across: NDArray[Any], run: NDArray[Any]) -> None:
    """gram_kl <- gram_kl between_(run k, run l) + across_(k, run l) across_(l, run k), in place.

    Parameters
    ----------
    gram : (m, m)
    between : (runs, runs)
        Of the queries that runs of rows share.
    across : (m, runs)
    run : (m,)
        The run of every row.
    """
    for k in range(len(run)):
        mine = run[k]
        for other in range(len(run)):
            theirs = run[other]
            gram[k, other] = gram[k, other] * between[mine, theirs] + across[k, theirs] * across[other, mine]


def selection_constraints(
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike | None,
    selected: Sequence[Any] | ArrayLike,
    rhs: ArrayLike,
) -> Constraints:
    """Check the input and write the selection as constraints; queries None is the prompt problem."""
    sequences = _check_sequences(tokens)
    chosen = _check_selected(selected, sequences)
    width = sequences[0].shape[1]
    if queries is None:
        right = np.ones((len(sequences), 1))
        shape: tuple[int, ...] = (width,)
    else:
        right = np.asarray(queries, dtype=float)
        if right.shape != (len(sequences), width):
            raise ValueError(f"queries of shape {right.shape} must have shape ({len(sequences)}, {width})")
        if not np.isfinite(right).all():
            raise ValueError("queries must be finite numbers")
        shape = (width, width)
    left, pairs, free = _differences(sequences, chosen)
    if free.all():
        raise ValueError("selected leaves no unselected token in any sequence: there is nothing to separate")
    right = right[pairs[:, 0]]
    if width == 1 or queries is None:
        left, right = left * right, np.ones_like(right)

    def token_pairs(pairs: Indices) -> tuple[Vector, Vector]:
        first = [sequences[i][chosen[i][0]] for i, _ in pairs]
        return np.reshape(first, (-1, width)), np.reshape([sequences[i][t] for i, t in pairs], (-1, width))

    # on a line a product keeps its sign, whatever rounding does to it, and that is all that matters there
    origin = None if width == 1 else token_pairs
    rows = Constraints(left, right, np.zeros(len(left)), free, pairs, shape, origin)
    with np.errstate(over="ignore"):
        sizes = rows.norms(2)
    vanished = (sizes < np.finfo(float).tiny) & left.any(axis=1) & right.any(axis=1)
    if vanished.any() or not np.isfinite(sizes).all():
        raise ValueError("differences of tokens times queries leave the range of float64; rescale tokens or queries")
    return rows.replace_rhs(_right_hand_sides(rhs, pairs[~free, 0], len(sequences)))


def _check_sequences(tokens: ArrayLike | Sequence[ArrayLike]) -> list[Vector]:
    sequences = [np.asarray(x, dtype=float) for x in tokens]  # type: ignore[union-attr]
    if not sequences:
        raise ValueError("tokens must hold at least one sequence")
    for i, x in enumerate(sequences):
        if x.ndim != 2 or x.size == 0 or x.shape[1] != sequences[0].shape[-1]:
            raise ValueError(f"tokens[{i}] of shape {x.shape} must have shape (tokens, {sequences[0].shape[-1]})")
        if not np.isfinite(x).all():
            raise ValueError(f"tokens[{i}] must hold finite numbers")
    return sequences


def _check_selected(selected: Sequence[Any] | ArrayLike, sequences: list[Vector]) -> list[Indices]:
    sets = [np.unique(np.atleast_1d(list(s) if isinstance(s, set | frozenset) else s)) for s in selected]  # type: ignore[union-attr]
    if len(sets) != len(sequences):
        raise ValueError(f"selected has {len(sets)} entries for {len(sequences)} sequences")
    for i, (chosen, x) in enumerate(zip(sets, sequences, strict=True)):
        if chosen.size == 0 or chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(f"selected[{i}]={chosen.tolist()} must be a token index or a non-empty set of them")
        if chosen[0] < 0 or chosen[-1] >= len(x):
            raise ValueError(f"selected[{i}]={chosen.tolist()} must lie in 0..{len(x) - 1}")
    return sets


def _differences(sequences: list[Vector], chosen: list[Indices]) -> tuple[Vector, Indices, NDArray[np.bool_]]:
    """First selected token minus another one: unselected ones for all sequences, then further selected ones."""
    unselected, further = [], []
    for i, (x, indices) in enumerate(zip(sequences, chosen, strict=True)):
        first = x[indices[0]] - x
        distinct = first.any(axis=1)
        if len(indices) > 1:
            taken = (x[:, None] == x[indices]).all(axis=2).any(axis=1)
            others = np.flatnonzero(taken & distinct)
            further.append((first[others], i, others))
            distinct &= ~taken
        others = np.flatnonzero(distinct)
        unselected.append((first[others], i, others))
    parts = unselected + further
    left = np.concatenate([rows for rows, _, _ in parts])
    counts = [len(rows) for rows, _, _ in parts]
    pairs = np.stack([np.repeat([i for _, i, _ in parts], counts), np.concatenate([t for _, _, t in parts])], axis=1)
    return left, pairs, np.arange(len(left)) >= sum(counts[: len(unselected)])


def _right_hand_sides(rhs: ArrayLike, sequence: Indices, sequences: int) -> Vector:
    values = np.asarray(rhs, dtype=float)
    if values.shape == (sequences,):
        values = values[sequence]
    elif values.shape not in ((), sequence.shape):
        raise ValueError(
            f"rhs of shape {values.shape} must be a number, ({sequences},) per sequence or {sequence.shape} per constraint"
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and (values > 0).any()):
        raise ValueError("rhs must be finite and not negative, with at least one positive entry")
    return values


@dataclass(frozen=True, eq=False)
class VocabularyConstraints:
    """Rows a_k = scale_k (E_first - E_second); <a_k, p> >= rhs_k, and = 0 on rows flagged `free`.

    Has the methods of `Constraints`; a subset is small enough to be written out and becomes one.
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
        return np.asarray(self.scale * (scores[self.pairs[:, 0]] - scores[self.pairs[:, 1]]))

    def adjoint(self, multipliers: Vector) -> Vector:
        """sum_k mu_k a_k, (d,)."""
        return self.token_weights(multipliers) @ self.embeddings

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

    def token_weights(self, multipliers: Vector) -> Vector:
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
        tokens = self._token_pairs if (self.scale[rows] == 1).all() else None
        right, shape = np.ones((len(left), 1)), self.embeddings.shape[1:]
        return Constraints(left, right, self.rhs[rows], self.free[rows], self.pairs[rows], shape, tokens)

    def normalize(self) -> tuple[VocabularyConstraints, Vector]:
        """The same problem with rows of unit l_2 norm and largest right-hand side 1, and the factor of each row."""
        norms = self.norms(2)
        factor = np.divide(1.0, norms, out=np.zeros(len(self)), where=norms > 0)
        rhs = self.rhs * factor
        return replace(self, scale=self.scale * factor, rhs=rhs / (rhs.max() or 1.0)), factor

    def reshape(self, weights: Vector) -> Vector:
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
        return np.asarray(basis[singular > 1e-13 * singular[0]])

    def _token_pairs(self, pairs: Indices) -> tuple[Vector, Vector]:
        return self.embeddings[pairs[:, 0]], self.embeddings[pairs[:, 1]]

    def _differences(self, rows: Any) -> Vector:
        first, second = self.pairs[rows].T
        return np.asarray(self.scale[rows][:, None] * (self.embeddings[first] - self.embeddings[second]))


AnyConstraints = Constraints | VocabularyConstraints


def vocabulary_constraints(embeddings: ArrayLike, counts: Any, selected: Any) -> VocabularyConstraints:
    """Check the input and list the distinct pairs: (first selected, unselected) token, then (first, further selected)."""
    E = np.asarray(embeddings, dtype=np.float64) + 0.0  # turns -0.0 into 0.0, which has other bytes
    counts = as_counts(counts)
    if E.ndim != 2 or len(E) != counts.shape[1] or E.shape[1] == 0:
        raise ValueError(f"embeddings of shape {E.shape} must have one row per token, ({counts.shape[1]}, d)")
    if not np.isfinite(E).all():
        raise ValueError("embeddings must hold finite numbers")
    chosen = _selection_flags(selected, counts)
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
    chosen = csgraph.minimum_spanning_tree(make_graph(pairs, size, weight)).data.astype(np.int64) - 1
    return np.sort(order[chosen])


def make_graph(pairs: Indices, size: int, weight: Vector | None = None) -> sparse.csr_array:
    """A graph of pairs of nodes; scipy 1.15 reads indices of 32 bits only."""
    weight = np.ones(len(pairs)) if weight is None else weight
    return sparse.csr_array((weight, tuple(pairs.astype(np.int32).T)), shape=(size, size))


def _distinct(first: Indices, second: Indices, size: int) -> Indices:
    codes = np.unique(first * size + second)
    return np.stack([codes // size, codes % size], axis=1)


def _selection_flags(selected: Any, counts: sparse.csr_array) -> NDArray[np.bool_]:
    """The selection as flags on the stored counts, (nnz,)."""
    n, size = counts.shape
    if sparse.issparse(selected) or (isinstance(selected, np.ndarray) and selected.ndim == 2):
        if selected.shape != counts.shape:
            raise ValueError(f"selected of shape {selected.shape} must have the shape of the counts, {counts.shape}")
        if sparse.issparse(selected):
            check_sparse("selected", selected)
        rows, tokens = selected.nonzero()
    else:
        rows, tokens = _index_sets(selected, n)
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


def _index_sets(selected: Sequence[Any], n: int) -> tuple[Indices, Indices]:
    sets = [np.atleast_1d(list(s) if isinstance(s, set | frozenset) else s) for s in selected]
    if len(sets) != n:
        raise ValueError(f"selected has {len(sets)} entries for {n} sequences")
    for row, tokens in enumerate(sets):
        if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
            raise ValueError(f"selected[{row}]={tokens.tolist()} must be a token index or a set of them")
    return np.repeat(np.arange(n), [s.size for s in sets]), np.concatenate(sets).astype(np.int64)
