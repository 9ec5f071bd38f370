"""What a fit on bags sees: bags from any container, their labels, and maps of the instances.

A map looks at one instance at a time, so that a score stays a sum over instances and counterfactuals stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from whichtoken.attention import RaggedArray
from whichtoken.attention.ragged import starts_of
from whichtoken.checks import check_features, check_sparse
from whichtoken.display.shown import Shown
from whichtoken.estimators.bags.files import as_files
from whichtoken.estimators.common import plain_label
from whichtoken.machine import require_memory
from whichtoken.theory.sparse_tokens.alignment import constant_score, loss_slope

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

MAPS = ("linear", "fourier", "network")
# weights (k, wide, narrow) and offsets (k, narrow) of k networks
Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
CHUNK_FLOATS = 1 << 22  # 32 MB in double precision
FREQUENCIES = 256
MEDIAN_ROWS = 200_000


@dataclass(frozen=True, eq=False)
class LabeledBags:
    """What one score is trained on."""

    bags: RaggedArray
    signs: Array  # (n,), -1 or +1; with the squared loss any numbers
    weights: Array  # (n,), at least 0
    query_weights: Array | None = None  # (n,), for the steps on the query, where these are to see other bags
    squared: bool = False  # whether the loss is the squared one, not the logistic

    @cached_property
    def shares(self) -> Array:
        """Weights that sum to one, (n,)."""
        return np.asarray(self.weights / self.weights.sum())

    @cached_property
    def for_query(self) -> LabeledBags:
        """The same bags with the weights that they have in the steps on the query."""
        return self if self.query_weights is None else replace(self, weights=self.query_weights, query_weights=None)

    @property
    def all_weights(self) -> Array:
        """What each bag counts in either part of the training, (n,)."""
        return self.weights if self.query_weights is None else self.weights + self.query_weights

    @property
    def prevalence(self) -> float:
        """Share of the positive bags."""
        return float(self.shares[self.signs > 0].sum())

    @property
    def constant(self) -> float:
        """The best score that is the same for every bag."""
        return float(self.shares @ self.signs) if self.squared else constant_score(self.prevalence, "logistic")

    @property
    def sides(self) -> Array:
        """Which bags the parts of a validation should hold alike: signs, or the lower and the upper half, (n,)."""
        ranks = np.argsort(np.argsort(self.signs, kind="stable"))  # equal numbers may be on both sides
        return np.where(2 * ranks < len(ranks), -1.0, 1.0) if self.squared else self.signs

    def losses(self, scores: Any, rows: Any = slice(None)) -> Array:
        """Losses of some of the bags at these scores."""
        signs = self.signs[rows]
        return np.asarray((scores - signs) ** 2 / 2 if self.squared else np.logaddexp(0, -signs * scores))

    def slopes(self, scores: Array) -> Array:
        """Slopes of the losses in the scores, (n,)."""
        return loss_slope("square" if self.squared else "logistic", scores, self.signs)

    def __getitem__(self, rows: NDArray[np.integer[Any]]) -> LabeledBags:
        """Some of the bags, in the order of `rows`."""
        query = None if self.query_weights is None else self.query_weights[rows]
        return LabeledBags(self.bags[rows], self.signs[rows], self.weights[rows], query, self.squared)


def as_bags(X: Any, token_dim: int | None = None, *, gaps: bool = False) -> RaggedArray:
    """Bags from any container that `BagClassifier` takes.

    The floating type of the input is kept: half a million float32 instances stay float32.

    Parameters
    ----------
    X
        A 3-D array (n, L, d), which is not copied and of which a masked array leaves out the masked instances; a sequence
        or an object array of n arrays (L_i, d); a 2-D array (n, L * token_dim) whose rows are the instances of a bag one
        after the other, `token_dim` being all columns by default (a bag of one); a RaggedArray; or files, one each.
    token_dim : int, optional
        Width of an instance, for 2-D input; checked for the others.
    gaps : bool
        Whether a number may be missing (NaN).
    """
    if (files := as_files(X)) is not None:
        X = files.load()
    if isinstance(X, RaggedArray):
        _check_width(X.dim, token_dim)
        return X
    if isinstance(X, np.ma.MaskedArray) and X.ndim == 3:
        hidden = np.asarray(np.ma.getmaskarray(X).any(axis=2))
        X = [X.data[i][~hidden[i]] for i in range(len(X))]
    if not X if isinstance(X, list | tuple) else getattr(X, "shape", ())[:1] == (0,):
        raise ValueError("X is empty; there must be at least one bag")
    if is_ragged(X):
        return _concatenate(list(X), token_dim, gaps)
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
    _check_instances(instances, gaps)
    return RaggedArray.unchecked(np.arange(0, n * length + 1, length), instances)


def is_ragged(X: Any) -> bool:
    """Whether X is a sequence of arrays, or of files of arrays, and not one array."""
    if as_files(X) is not None:
        return True
    several = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    return several and any(getattr(bag, "ndim", np.ndim(bag)) == 2 for bag in X)


def bags_of_rows(table: NDArray[Any], bag: Any) -> RaggedArray:
    """Bags of a table with one instance per row, in the order in which their ids first appear."""
    codes, ids = _bag_codes(bag, len(table))
    instances = _floating(table[np.argsort(codes, kind="stable")])
    _check_instances(instances, gaps=True)
    return RaggedArray.unchecked(starts_of(np.bincount(codes, minlength=len(ids))), instances)


def first_of_bags(bag: Any, y: Any = None) -> tuple[NDArray[Any], Any]:
    """Ids of bags in the order of their first appearance, and a label of each, if labels (bags,) or (rows,) are given."""
    codes, ids = _bag_codes(bag, None)
    if y is None or len(labels := np.asarray(y)) == len(ids):
        return ids, y
    if labels.shape != codes.shape:
        raise ValueError(
            f"y has {len(labels)} labels for {len(ids)} bags in {len(codes)} rows; give one for each bag or row"
        )
    first = labels[np.unique(codes, return_index=True)[1]]
    mixed = np.flatnonzero(labels != first[codes])
    if mixed.size:
        raise ValueError(f"bag {plain_label(ids[codes[mixed[0]]])!r} has several labels in y; a bag must have one")
    return ids, first


def _bag_codes(bag: Any, rows: int | None) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """The number of the bag of each row (rows,), and the ids."""
    import pandas as pd

    names = np.asarray(bag)
    if names.ndim != 1 or (rows is not None and len(names) != rows):
        raise ValueError(f"bag of shape {names.shape} must have one id for each of the {rows} rows of X")
    codes, ids = pd.factorize(names)
    if (codes < 0).any():
        raise ValueError(f"bag has no id in row {int(np.argmax(codes < 0))}; every row needs one")
    return codes, np.asarray(ids)


def _has_gaps(instances: Floats) -> bool:
    """Whether a number is missing, found without a copy of the instances."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(instances.sum()) and np.isnan(instances).any())


def _check_instances(instances: Floats, gaps: bool) -> None:
    known = np.where(np.isnan(instances), 0, instances) if gaps and _has_gaps(instances) else instances
    check_features(known, "instances")


def medians(bags: RaggedArray) -> Array:
    """Medians (d,) of what is known of each feature, which fill its gaps; of many instances, of an evenly spaced part."""
    found = np.empty(bags.dim)
    step = max(1, len(bags.vectors) // MEDIAN_ROWS)
    for place, column in enumerate(bags.vectors.T):
        known = column[::step][~np.isnan(column[::step])]
        known = known if known.size else column[~np.isnan(column)]
        if not known.size:
            raise ValueError(f"feature {place} is missing in every instance; leave it out")
        found[place] = np.median(known)
    return found


def fill_gaps(bags: RaggedArray, fills: Array, drop: bool) -> RaggedArray:
    """The same bags with their gaps filled, or without the instances that have one."""
    if not _has_gaps(bags.vectors):
        return bags
    gaps = np.isnan(bags.vectors)
    if not drop:
        filled = np.where(gaps, fills.astype(bags.vectors.dtype), bags.vectors)
        return RaggedArray.unchecked(bags.starts, filled)
    kept = ~gaps.any(axis=1)
    lengths = np.add.reduceat(kept.astype(np.int64), bags.starts[:-1])
    if not lengths.all():
        raise ValueError(
            f"bag {int(lengths.argmin())} has a gap in every instance; with drop_missing=True nothing is left"
        )
    return RaggedArray.unchecked(starts_of(lengths), bags.vectors[kept])


def _concatenate(bags: Sequence[Any], token_dim: int | None, gaps: bool) -> RaggedArray:
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
    _check_instances(instances, gaps)
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
    """phi(x): the instance itself, the cosine of one layer, or what several networks side by side make of it.

    A network passes the standardized instance through its layers, each followed by a ReLU. With a gate the last layer has
    twice the units, and the second half of them, between 0 and 1, multiplies the first.
    """

    kind: str  # one of MAPS
    scaling: Scaling
    layers: tuple[Layer, ...] = ()
    gate: bool = False

    @property
    def dim(self) -> int:
        """Features of an instance."""
        return len(self.scaling.mean)

    @property
    def width(self) -> int:
        """Features of a mapped instance."""
        return self.layers[-1][1].size // (2 if self.gate else 1) if self.layers else self.dim

    def features(self, tokens: Floats) -> Floats:
        """Mapped instances (n, m) of instances (n, d), in their precision."""
        if not self.layers:
            return tokens
        kind = tokens.dtype
        hidden = ((tokens - self.scaling.mean.astype(kind)) / self.scaling.scale.astype(kind))[None]
        for place, (weights, offsets) in enumerate(self.layers, 1):
            hidden = hidden @ weights.astype(kind) + offsets.astype(kind)[:, None]  # (k, n, narrow)
            if self.kind == "fourier":
                hidden = np.cos(hidden)
            elif self.gate and place == len(self.layers):
                half = hidden.shape[2] // 2
                hidden = np.maximum(hidden[:, :, :half], 0) * expit(hidden[:, :, half:])
            else:
                hidden = np.maximum(hidden, 0)
        return np.asarray(hidden.transpose(1, 0, 2).reshape(len(tokens), -1))

    def products(self, bags: RaggedArray, directions: Array) -> Array:
        """Mapped instances times directions (k, m), (total, k); the mapped instances are never all in memory."""
        columns = directions.T.astype(bags.vectors.dtype)
        if not self.layers:
            return np.asarray(bags.vectors @ columns, dtype=np.float64)
        parts = [self.features(bags.vectors[rows]) @ columns for rows in row_chunks(bags, self.width)]
        return np.concatenate(parts).astype(np.float64, copy=False)

    def bags(self, bags: RaggedArray) -> RaggedArray:
        """All mapped instances at once, for training."""
        if not self.layers:
            return bags
        needed = len(bags.vectors) * self.width * bags.vectors.itemsize
        require_memory(needed, f"instance_map='{self.kind}'", "use instance_map='linear' or fewer instances")
        mapped = np.empty((len(bags.vectors), self.width), dtype=bags.vectors.dtype)
        for rows in row_chunks(bags, self.width):
            mapped[rows] = self.features(bags.vectors[rows])
        return RaggedArray.unchecked(bags.starts, mapped)


def linear_map(dim: int) -> InstanceMap:
    """Instances as they are."""
    return InstanceMap("linear", no_scaling(dim))


def fourier_map(scaling: Scaling, bandwidth: float, seed: int) -> InstanceMap:
    """Random Fourier features (Rahimi, Recht 2007) of a Gaussian kernel.

    Its width is `bandwidth` times the root of the dimension, which is how far two standardized instances are apart.
    """
    rng, dim = np.random.default_rng(seed), len(scaling.mean)
    frequencies = rng.standard_normal((dim, FREQUENCIES)) / (bandwidth * np.sqrt(dim))
    return InstanceMap("fourier", scaling, ((frequencies[None], rng.uniform(0, 2 * np.pi, (1, FREQUENCIES))),))


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


def shared_scaling(scaling: Scaling) -> Scaling:
    """The same with one scale for all features, which leaves a feature small that varies little."""
    return Scaling(scaling.mean, np.full_like(scaling.scale, np.sqrt(np.mean(scaling.scale**2))))


def no_scaling(dim: int) -> Scaling:
    """Instances as they are."""
    return Scaling(np.zeros(dim), np.ones(dim))


def row_chunks(bags: RaggedArray, width: int) -> Iterator[slice]:
    """Rows of the instances, a few megabytes at a time."""
    step = max(1, CHUNK_FLOATS // max(bags.dim, width))
    return (slice(start, start + step) for start in range(0, len(bags.vectors), step))
