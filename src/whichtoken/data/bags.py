"""Bags of vectors without padding: all instances in one array, and where each bag begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.checks import check_sparse
from whichtoken.data.table_files import LARGEST
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bags(Shown):
    """n bags of d-dimensional instances.

    `tokens` keeps the floating type of the input: half a million float32 instances stay float32.
    """

    tokens: NDArray[np.floating[Any]]  # (total, d)
    starts: NDArray[np.intp]  # (n + 1,), bag i is tokens[starts[i]:starts[i + 1]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        """Width of an instance."""
        return int(self.tokens.shape[1])

    @cached_property
    def lengths(self) -> NDArray[np.intp]:
        """Instances per bag, (n,)."""
        return np.diff(self.starts)

    def bag(self, i: int) -> NDArray[np.floating[Any]]:
        """Instances of bag i, a view (length, d)."""
        return self.tokens[self.starts[i] : self.starts[i + 1]]

    def subset(self, rows: NDArray[np.integer[Any]] | NDArray[np.bool_]) -> Bags:
        """The bags named by `rows`, in that order."""
        chosen = np.arange(len(self))[rows]
        lengths = self.lengths[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], lengths)
        return Bags(self.tokens[places], starts)

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """One array per bag of something that is given for every instance, (total, ...)."""
        return np.split(values, self.starts[1:-1])


@dataclass(frozen=True, eq=False)
class LabelledBags:
    """What one score is trained on."""

    bags: Bags
    signs: Array  # (n,), -1 or +1
    weights: Array  # (n,), at least 0
    query_weights: Array | None = None  # (n,), for the steps on the query, where these are to see other bags

    @cached_property
    def shares(self) -> Array:
        """Weights that sum to one, (n,)."""
        return np.asarray(self.weights / self.weights.sum())

    @cached_property
    def for_query(self) -> LabelledBags:
        """The same bags with the weights that they have in the steps on the query."""
        return self if self.query_weights is None else LabelledBags(self.bags, self.signs, self.query_weights)

    @property
    def all_weights(self) -> Array:
        """What each bag counts in either part of the training, (n,)."""
        return self.weights if self.query_weights is None else self.weights + self.query_weights

    @property
    def prevalence(self) -> float:
        """Share of the positive bags."""
        return float(self.shares[self.signs > 0].sum())

    def subset(self, rows: NDArray[np.integer[Any]]) -> LabelledBags:
        """The bags named by `rows`, in that order."""
        query = None if self.query_weights is None else self.query_weights[rows]
        return LabelledBags(self.bags.subset(rows), self.signs[rows], self.weights[rows], query)

    def on(self, bags: Bags) -> LabelledBags:
        """The same labels and weights for other instances."""
        return LabelledBags(bags, self.signs, self.weights, self.query_weights)


def as_bags(X: Any, token_dim: int | None = None) -> Bags:
    """Bags from any of the accepted containers.

    Parameters
    ----------
    X
        A 3-D array (n, L, d), which is not copied and of which a masked array leaves out the masked instances; a sequence
        of n arrays (L_i, d); or a 2-D array (n, L * token_dim) whose rows are the instances of a bag one after the other,
        `token_dim` being all columns by default (a bag of one).
    token_dim : int, optional
        Width of an instance, for 2-D input; checked for the others.
    """
    if isinstance(X, Bags):
        _check_starts(X)
        _check_width(X.dim, token_dim)
        return X
    if isinstance(X, np.ma.MaskedArray) and X.ndim == 3:
        hidden = np.asarray(np.ma.getmaskarray(X).any(axis=2))
        X = [X.data[i][~hidden[i]] for i in range(len(X))]
    if not X if isinstance(X, list | tuple) else getattr(X, "shape", ())[:1] == (0,):
        raise ValueError("X is empty; there must be at least one bag")
    if is_ragged(X):
        return _stacked(X, token_dim)
    table = np.asarray(X)
    if table.ndim == 2:
        return _from_rows(_floating(table), token_dim)
    if table.ndim != 3:
        raise ValueError(
            f"X of shape {table.shape} must be a 3-D array (bags, instances, features), a list of 2-D arrays,"
            " or a 2-D array with token_dim"
        )
    n, length, width = table.shape
    if length == 0:
        raise ValueError("bag 0 is empty; every bag must have at least one instance")
    _check_width(width, token_dim)
    tokens = np.ascontiguousarray(_floating(table)).reshape(n * length, width)
    return Bags(_usable(tokens), np.arange(0, n * length + 1, length))


def _check_starts(bags: Bags) -> None:
    starts = bags.starts
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(bags.tokens) or (np.diff(starts) < 0).any():
        raise ValueError(f"starts of bags must ascend from 0 to the number of instances, {len(bags.tokens)}")


def is_ragged(X: Any) -> bool:
    """Whether X is a sequence of arrays and not one array."""
    return isinstance(X, list | tuple) and any(getattr(bag, "ndim", np.ndim(bag)) == 2 for bag in X)


def _stacked(bags: Sequence[Any], token_dim: int | None) -> Bags:
    for i, bag in enumerate(bags):
        if sparse.issparse(bag):
            check_sparse(f"bag {i}", bag)
    arrays = [np.asarray(bag.toarray() if sparse.issparse(bag) else bag) for bag in bags]
    width = next(bag.shape[1] for bag in arrays if bag.ndim == 2)
    for i, bag in enumerate(arrays):
        if bag.ndim != 2 or bag.shape[1] != width:
            raise ValueError(f"bag {i} of shape {bag.shape} must be (instances, {width}), like the others")
        if len(bag) == 0:
            raise ValueError(f"bag {i} is empty; every bag must have at least one instance")
    _check_width(width, token_dim)
    starts = np.concatenate([[0], np.cumsum([len(bag) for bag in arrays])])
    return Bags(_usable(_floating(np.concatenate(arrays))), starts)


def _from_rows(table: NDArray[np.floating[Any]], token_dim: int | None) -> Bags:
    columns = table.shape[1]
    width = columns if token_dim is None else token_dim
    if width < 1 or columns % width:
        raise ValueError(f"token_dim={token_dim} must divide the {columns} columns of X")
    count = len(table) * (columns // width)
    tokens = np.ascontiguousarray(table).reshape(count, width)
    return Bags(_usable(tokens), np.arange(0, count + 1, columns // width))


def _floating(array: NDArray[Any]) -> NDArray[np.floating[Any]]:
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X of type {array.dtype} must be real")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X of type {array.dtype} must be numeric: {error}") from error


def _usable(tokens: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    return check_values(tokens, "instances")


def check_values(X: NDArray[np.floating[Any]], what: str) -> NDArray[np.floating[Any]]:
    """X itself, if all its numbers can be computed with."""
    if not X.size:
        return X
    with np.errstate(invalid="ignore"):
        low, high = float(X.min()), float(X.max())  # nan if there is one
    if not np.isfinite([low, high]).all():
        raise ValueError(f"X contains {'NaN' if np.isnan(low) else 'infinity'}; {what} must be finite")
    largest = high if high >= -low else low
    if abs(largest) > LARGEST:
        raise ValueError(f"X contains {largest:g}; {what} must be below {LARGEST:g} in size, so rescale the column")
    return X


def _check_width(width: int, token_dim: int | None) -> None:
    if token_dim is not None and token_dim != width:
        raise ValueError(f"token_dim={token_dim} must be the width of the instances, {width}")
