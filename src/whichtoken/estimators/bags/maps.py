"""What attention sees of an instance: the instance itself, random Fourier features, or the hidden layer of a network.

A map looks at one instance at a time, so that a score stays a sum over instances and counterfactuals stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.bags import Bags
from whichtoken.display.shown import Shown
from whichtoken.memory import require_memory

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

MAPS = ("linear", "fourier", "network")
CHUNK_FLOATS = 1 << 22  # 32 MB in double precision
FREQUENCIES = 256


@dataclass(frozen=True, eq=False)
class Scaling(Shown):
    """Mean and standard deviation of the instances; constant features have scale 1."""

    mean: Array  # (d,)
    scale: Array  # (d,)


@dataclass(frozen=True, eq=False)
class InstanceMap(Shown):
    """phi(x) = cos or relu of `weights`^T z + `offsets`, z the standardised instance; without weights, phi(x) = x."""

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

    def products(self, bags: Bags, directions: Array) -> Array:
        """Mapped instances times directions (k, m), (total, k); the mapped instances are never all in memory."""
        columns = directions.T.astype(bags.tokens.dtype)
        if self.kind == "linear":
            return np.asarray(bags.tokens @ columns, dtype=np.float64)
        parts = [self.features(bags.tokens[rows]) @ columns for rows in row_chunks(bags, self.width)]
        return np.concatenate(parts).astype(np.float64, copy=False)

    def bags(self, bags: Bags) -> Bags:
        """All mapped instances at once, for training."""
        if self.kind == "linear":
            return bags
        needed = len(bags.tokens) * self.width * bags.tokens.itemsize
        require_memory(needed, f"instance_map='{self.kind}'", "use instance_map='linear' or fewer instances")
        mapped = np.empty((len(bags.tokens), self.width), dtype=bags.tokens.dtype)
        for rows in row_chunks(bags, self.width):
            mapped[rows] = self.features(bags.tokens[rows])
        return Bags(mapped, bags.starts)


def linear_map(dim: int) -> InstanceMap:
    """Instances as they are."""
    return InstanceMap("linear", no_scaling(dim), np.empty((dim, 0)), np.empty(0))


def fourier_map(scaling: Scaling, bandwidth: float, seed: int) -> InstanceMap:
    """Random Fourier features (Rahimi, Recht 2007) of a Gaussian kernel.

    Its width is `bandwidth` times the root of the dimension, which is how far two standardised instances are apart.
    """
    rng, dim = np.random.default_rng(seed), len(scaling.mean)
    frequencies = rng.standard_normal((dim, FREQUENCIES)) / (bandwidth * np.sqrt(dim))
    return InstanceMap("fourier", scaling, frequencies, rng.uniform(0, 2 * np.pi, FREQUENCIES))


def instance_scaling(bags: Bags, weights: Array | None = None) -> Scaling:
    """Mean and scale of the features over all instances, each with the weight of its bag; one pass each."""
    shares = np.repeat(np.ones(len(bags)) if weights is None else weights, bags.lengths)
    shares /= shares.sum()
    # chunks of rows: a centred copy of everything would double the memory
    chunks = list(row_chunks(bags, bags.dim))
    mean = np.sum([shares[rows] @ bags.tokens[rows] for rows in chunks], axis=0)
    scale = np.sqrt(np.sum([shares[rows] @ (bags.tokens[rows] - mean) ** 2 for rows in chunks], axis=0))
    constant = scale <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    return Scaling(mean, np.where(constant, 1.0, scale))


def no_scaling(dim: int) -> Scaling:
    """Instances as they are."""
    return Scaling(np.zeros(dim), np.ones(dim))


def row_chunks(bags: Bags, width: int) -> Iterator[slice]:
    """Rows of the instances, a few megabytes at a time."""
    step = max(1, CHUNK_FLOATS // max(bags.dim, width))
    return (slice(start, start + step) for start in range(0, len(bags.tokens), step))
