"""What a fit on bags sees: bags from any container, their labels, and maps of the instances.

A map looks at one instance at a time, so that a score stays a sum over instances and counterfactuals stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.attention import RaggedArray
from whichtoken.attention.ragged import starts_of
from whichtoken.checks import check_features, check_sparse
from whichtoken.display.shown import Shown
from whichtoken.machine import require_memory

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

MAPS = ("linear", "fourier", "network")
CHUNK_FLOATS = 1 << 22  # 32 MB in double precision
FREQUENCIES = 256


@dataclass(frozen=True, eq=False)
class LabeledBags:
    """What one score is trained on."""

    bags: RaggedArray
    signs: Array  # (n,), -1 or +1
    weights: Array  # (n,), at least 0
    query_weights: Array | None = None  # (n,), for the steps on the query, where these are to see other bags

    @cached_property
    def shares(self) -> Array:
        """Weights that sum to one, (n,)."""
        return np.asarray(self.weights / self.weights.sum())

    @cached_property
    def for_query(self) -> LabeledBags:
        """The same bags with the weights that they have in the steps on the query."""
        return self if self.query_weights is None else LabeledBags(self.bags, self.signs, self.query_weights)

    @property
    def all_weights(self) -> Array:
        """What each bag counts in either part of the training, (n,)."""
        return self.weights if self.query_weights is None else self.weights + self.query_weights

    @property
    def prevalence(self) -> float:
        """Share of the positive bags."""
        return float(self.shares[self.signs > 0].sum())

    def __getitem__(self, rows: NDArray[np.integer[Any]]) -> LabeledBags:
        """Some of the bags, in the order of `rows`."""
        query = None if self.query_weights is None else self.query_weights[rows]
        return LabeledBags(self.bags[rows], self.signs[rows], self.weights[rows], query)


def as_bags(X: Any, token_dim: int | None = None) -> RaggedArray:
    """Bags from any container that `BagClassifier` takes.

    The floating type of the input is kept: half a million float32 instances stay float32.

    Parameters
    ----------
    X
        A 3-D array (n, L, d), which is not copied and of which a masked array leaves out the masked instances; a sequence
        of n arrays (L_i, d); a 2-D array (n, L * token_dim) whose rows are the instances of a bag one after the other,
        `token_dim` being all columns by default (a bag of one); or a RaggedArray.
    token_dim : int, optional
        Width of an instance, for 2-D input; checked for the others.
    """
    if isinstance(X, RaggedArray):
        _check_width(X.dim, token_dim)
        return X
    if isinstance(X, np.ma.MaskedArray) and X.ndim == 3:
        hidden = np.asarray(np.ma.getmaskarray(X).any(axis=2))
        X = [X.data[i][~hidden[i]] for i in range(len(X))]
    if not X if isinstance(X, list | tuple) else getattr(X, "shape", ())[:1] == (0,):
        raise ValueError("X is empty; there must be at least one bag")
    if is_ragged(X):
        return _concatenate(X, token_dim)
    table = np.asarray(X)
    if table.ndim == 2:
        columns = table.shape[1]
        width = columns if token_dim is None else token_dim
        if width < 1 or columns % width:
            raise ValueError(f"token_dim={token_dim} must divide the {columns} columns of X")
        n, length = len(table), columns // width
    elif table.ndim == 3:
        n, length, width = table.shape
        if length == 0:
            raise ValueError("bag 0 is empty; every bag must have at least one instance")
        _check_width(width, token_dim)
    else:
        raise ValueError(
            f"X of shape {table.shape} must be a 3-D array (bags, instances, features), a list of 2-D arrays,"
            " or a 2-D array with token_dim"
        )
    instances = np.ascontiguousarray(_floating(table)).reshape(n * length, width)
    check_features(instances, "instances")
    return RaggedArray.unchecked(np.arange(0, n * length + 1, length), instances)


def is_ragged(X: Any) -> bool:
    """Whether X is a sequence of arrays and not one array."""
    return isinstance(X, list | tuple) and any(getattr(bag, "ndim", np.ndim(bag)) == 2 for bag in X)


def _concatenate(bags: Sequence[Any], token_dim: int | None) -> RaggedArray:
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
    instances = _floating(np.concatenate(arrays))
    check_features(instances, "instances")
    return RaggedArray.unchecked(starts_of([len(bag) for bag in arrays]), instances)


def _floating(array: NDArray[Any]) -> Floats:
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X of type {array.dtype} must be real")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X of type {array.dtype} must be numeric: {error}") from error


def _check_width(width: int, token_dim: int | None) -> None:
    if token_dim is not None and token_dim != width:
        raise ValueError(f"token_dim={token_dim} must be the width of the instances, {width}")


@dataclass(frozen=True, eq=False)
class Scaling(Shown):
    """Mean and standard deviation of the instances; constant features have scale 1."""

    mean: Array  # (d,)
    scale: Array  # (d,)


@dataclass(frozen=True, eq=False)
class InstanceMap(Shown):
    """phi(x) = cos or relu of `weights`^T z + `offsets`, z the standardized instance; without weights, phi(x) = x."""

    kind: str  # one of MAPS
    scaling: Scaling
    weights: Array  # (d, m); (d, 0) where phi(x) = x
    offsets: Array  # (m,)

    @property
    def dim(self) -> int:
        """Features of an instance."""
        return len(self.scaling.mean)

    @property
    def width(self) -> int:
        """Features of a mapped instance."""
        return self.dim if self.kind == "linear" else len(self.offsets)

    def features(self, tokens: Floats) -> Floats:
        """Mapped instances (k, m) of instances (k, d), in their precision."""
        if self.kind == "linear":
            return tokens
        scaled = (tokens - self.scaling.mean.astype(tokens.dtype)) / self.scaling.scale.astype(tokens.dtype)
        hidden = scaled @ self.weights.astype(tokens.dtype) + self.offsets.astype(tokens.dtype)
        return np.asarray(np.cos(hidden) if self.kind == "fourier" else np.maximum(hidden, 0))

    def products(self, bags: RaggedArray, directions: Array) -> Array:
        """Mapped instances times directions (k, m), (total, k); the mapped instances are never all in memory."""
        columns = directions.T.astype(bags.vectors.dtype)
        if self.kind == "linear":
            return np.asarray(bags.vectors @ columns, dtype=np.float64)
        parts = [self.features(bags.vectors[rows]) @ columns for rows in row_chunks(bags, self.width)]
        return np.concatenate(parts).astype(np.float64, copy=False)

    def bags(self, bags: RaggedArray) -> RaggedArray:
        """All mapped instances at once, for training."""
        if self.kind == "linear":
            return bags
        needed = len(bags.vectors) * self.width * bags.vectors.itemsize
        require_memory(needed, f"instance_map='{self.kind}'", "use instance_map='linear' or fewer instances")
        mapped = np.empty((len(bags.vectors), self.width), dtype=bags.vectors.dtype)
        for rows in row_chunks(bags, self.width):
            mapped[rows] = self.features(bags.vectors[rows])
        return RaggedArray.unchecked(bags.starts, mapped)


def linear_map(dim: int) -> InstanceMap:
    """Instances as they are."""
    return InstanceMap("linear", no_scaling(dim), np.empty((dim, 0)), np.empty(0))


def fourier_map(scaling: Scaling, bandwidth: float, seed: int) -> InstanceMap:
    """Random Fourier features (Rahimi, Recht 2007) of a Gaussian kernel.

    Its width is `bandwidth` times the root of the dimension, which is how far two standardized instances are apart.
    """
    rng, dim = np.random.default_rng(seed), len(scaling.mean)
    frequencies = rng.standard_normal((dim, FREQUENCIES)) / (bandwidth * np.sqrt(dim))
    return InstanceMap("fourier", scaling, frequencies, rng.uniform(0, 2 * np.pi, FREQUENCIES))


def instance_scaling(bags: RaggedArray, weights: Array | None = None) -> Scaling:
    """Mean and scale of the features over all instances, each with the weight of its bag; one pass each."""
    shares = np.repeat(np.ones(len(bags)) if weights is None else weights, bags.lengths)
    shares /= shares.sum()
    # chunks of rows: a centered copy of everything would double the memory
    chunks = list(row_chunks(bags, bags.dim))
    mean = np.sum([shares[rows] @ bags.vectors[rows] for rows in chunks], axis=0)
    scale = np.sqrt(np.sum([shares[rows] @ (bags.vectors[rows] - mean) ** 2 for rows in chunks], axis=0))
    constant = scale <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    return Scaling(mean, np.where(constant, 1.0, scale))


def no_scaling(dim: int) -> Scaling:
    """Instances as they are."""
    return Scaling(np.zeros(dim), np.ones(dim))


def row_chunks(bags: RaggedArray, width: int) -> Iterator[slice]:
    """Rows of the instances, a few megabytes at a time."""
    step = max(1, CHUNK_FLOATS // max(bags.dim, width))
    return (slice(start, start + step) for start in range(0, len(bags.vectors), step))
