"""Token selection as linear constraints <a_k, W> >= b_k whose a_k are rank-one matrices.

Row k says that the selected token of a sequence outscores one unselected token t: a_k = (x_selected - x_t) z^T with the
query z of that sequence. A prompt has no query; it is the same problem with the number 1 as query. Only the two factors
are stored, so a key-query problem of m rows in d x d unknowns costs m (2 d) numbers, not m d^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.margin.gram_kernels import add_products
from whichtoken.margin.rounding import exact_difference, rounding
from whichtoken.norms import Vector, row_norms

Indices = NDArray[np.int64]
# Up to this many numbers the rows are written out: one product of small dense matrices beats a loop over sequences.
DENSE = 2**17


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
        matrix = weights.reshape(self.left.shape[1], self.right.shape[1])
        scores: Vector = np.einsum("ke,ke->k", self.left @ matrix, self.right)
        return scores

    def adjoint(self, multipliers: Vector) -> Vector:
        """sum_k mu_k a_k, flattened."""
        if self.small:
            return multipliers @ self.dense
        return ((self.left.T * multipliers) @ self.right).ravel()

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
            return self._scaled_gram(scale.reshape(shape), None if swapped is None else swapped.reshape(shape))
        image = self.dense * scale
        if swapped is not None:
            turned = self.dense.reshape(-1, *shape).swapaxes(1, 2).reshape(len(self), -1)
            image = image + turned * swapped
        return image @ self.dense.T

    def _scaled_gram(self, scale: Vector, swapped: Vector | None) -> Vector:
        """Rows of one sequence share their query, which splits off the sum over its d entries: m^2 d work, not m^2 d^2."""
        queries, block = self._queries
        starts = np.searchsorted(block, np.arange(len(queries) + 1))
        gram = np.empty((len(self), len(self)))
        for i, (start, stop) in enumerate(pairwise(starts)):
            mixed = (queries[i:] * queries[i]) @ scale.T  # (blocks from i on, d)
            later = mixed[block[start:] - i]
            later *= self.left[start:]
            if swapped is not None:
                turned = self.left[start:] @ (queries[i] * swapped).T
                turned *= self.right[start:]
                later += turned
            gram[start:stop, start:] = self.left[start:stop] @ later.T
            gram[stop:, start:stop] = gram[start:stop, stop:].T
        return gram

    def product_gram(self, own: Vector, mixed: Vector, other: Vector) -> Vector:
        """<a_k, own a_l other + mixed a_l^T mixed> for all pairs of rows, (m, m); `own` and `other` are symmetric."""
        queries, block = self._queries
        gram: Vector = self.left @ own @ self.left.T
        add_products(gram, queries @ other @ queries.T, self.left @ mixed @ queries.T, block)
        return gram

    @cached_property
    def _queries(self) -> tuple[Vector, Indices]:
        """Queries of runs of rows that share one, (blocks, e), and the run of every row, (m,)."""
        begins = np.r_[True, np.diff(self.pairs[:, 0]) != 0]
        return self.right[begins], np.cumsum(begins) - 1

    def norms(self, p: float) -> Vector:
        """l_p norm of every row; a rank-one matrix has the product of its factors' norms."""
        return row_norms(self.left, p) * row_norms(self.right, p)

    def subset(self, rows: NDArray[Any] | slice) -> Constraints:
        left, right = self.left[rows], self.right[rows]
        return Constraints(left, right, self.rhs[rows], self.free[rows], self.pairs[rows], self.shape, self.tokens)

    def lost(self) -> Vector:
        """What rounding took from `left`, (m, d): together they are the differences of the tokens exactly."""
        return np.zeros_like(self.left) if self.tokens is None else exact_difference(*self.tokens(self.pairs))[1]

    def normalized(self) -> tuple[Constraints, Vector]:
        """The same problem with rows of unit l_2 norm and largest right-hand side 1, and the factor of each row."""
        norms = self.norms(2)
        factor = np.divide(1.0, norms, out=np.zeros(len(self)), where=norms > 0)
        rhs = self.rhs * factor
        left = self.left * factor[:, None]
        return replace(self, left=left, tokens=None, rhs=rhs / (rhs.max() or 1.0)), factor

    def with_rhs(self, rhs: ArrayLike) -> Constraints:
        """New right-hand sides for the inequalities."""
        values = np.zeros(len(self))
        values[~self.free] = rhs
        return replace(self, rhs=values)

    def shaped(self, weights: Vector) -> Vector:
        return weights.reshape(self.shape)

    def project(self, weights: Vector) -> Vector:
        """Nearest weights that meet the equalities."""
        if not self.free.any():
            return weights
        equalities = self.subset(self.free)
        correction, *_ = np.linalg.lstsq(equalities.dense, equalities.apply(weights), rcond=None)
        return weights - correction


def selection_constraints(
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike | None,
    selected: Sequence[Any] | ArrayLike,
    rhs: ArrayLike,
) -> Constraints:
    """Check the input and write the selection as constraints; queries None is the prompt problem."""
    sequences = _sequences(tokens)
    chosen = _selected(selected, sequences)
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

    def compared(pairs: Indices) -> tuple[Vector, Vector]:
        first = [sequences[i][chosen[i][0]] for i, _ in pairs]
        return np.reshape(first, (-1, width)), np.reshape([sequences[i][t] for i, t in pairs], (-1, width))

    # on a line a product keeps its sign, whatever rounding does to it, and that is all that matters there
    origin = None if width == 1 else compared
    rows = Constraints(left, right, np.zeros(len(left)), free, pairs, shape, origin)
    with np.errstate(over="ignore"):
        sizes = rows.norms(2)
    vanished = (sizes < np.finfo(float).tiny) & left.any(axis=1) & right.any(axis=1)
    if vanished.any() or not np.isfinite(sizes).all():
        raise ValueError("differences of tokens times queries leave the range of float64; rescale tokens or queries")
    return rows.with_rhs(_right_hand_sides(rhs, pairs[~free, 0], len(sequences)))


def _sequences(tokens: ArrayLike | Sequence[ArrayLike]) -> list[Vector]:
    sequences = [np.asarray(x, dtype=float) for x in tokens]  # type: ignore[union-attr]
    if not sequences:
        raise ValueError("tokens must hold at least one sequence")
    for i, x in enumerate(sequences):
        if x.ndim != 2 or x.size == 0 or x.shape[1] != sequences[0].shape[-1]:
            raise ValueError(f"tokens[{i}] of shape {x.shape} must have shape (tokens, {sequences[0].shape[-1]})")
        if not np.isfinite(x).all():
            raise ValueError(f"tokens[{i}] must hold finite numbers")
    return sequences


def _selected(selected: Sequence[Any] | ArrayLike, sequences: list[Vector]) -> list[Indices]:
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
