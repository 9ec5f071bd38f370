"""Sequences in which few tokens of the positive class carry a weak signal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_count
from whichtoken.data.sparse_positions import check_positions, draw_positions
from whichtoken.data.sparse_task import Task
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]

CHUNK_FLOATS = 1 << 21  # 16 MB of tokens at a time


@dataclass(frozen=True, eq=False)
class SparseTokens(Task):
    """Gaussian sequences; in positive ones `strength * signal` is added to `signal_tokens` of the tokens.

    The data of Barnfield, Cui, Lu, arXiv 2509.25153, section 2.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        L, R, theta and pi = P(label = +1).
    dim : int
        Width of a token.
    positions : array (L,), optional
        Weights with which signal positions are drawn, without replacement; uniform by default.
    signal : array (dim,), optional
        Hidden direction, scaled to unit norm; the first coordinate by default, which rotation invariance permits.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import SparseTokens
    >>> data = SparseTokens(length=6, signal_tokens=1, strength=3.0, prevalence=0.5, dim=4)
    >>> tokens, labels = data.sample(10, np.random.default_rng(0))
    >>> tokens.shape, data.direction.tolist()
    ((10, 6, 4), [1.0, 0.0, 0.0, 0.0])
    """

    dim: int
    positions: ArrayLike | None = None
    signal: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("dim", self.dim, 2)
        object.__setattr__(self, "positions", check_positions(self.positions, self.length, self.signal_tokens))
        direction = np.eye(1, self.dim)[0] if self.signal is None else np.asarray(self.signal, dtype=float)
        if direction.shape != (self.dim,) or not 0 < np.linalg.norm(direction) < math.inf:
            raise ValueError(f"signal of shape {direction.shape} must be a finite non-zero vector of dim={self.dim}")
        object.__setattr__(self, "signal", direction / np.linalg.norm(direction))

    @property
    def direction(self) -> Array:
        """The hidden unit vector, (dim,)."""
        return np.asarray(self.signal)

    def sample(self, samples: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tokens (samples, length, dim) and labels (samples,) of -1 and +1."""
        labels = self.labels(samples, rng)
        positive = np.flatnonzero(labels > 0)
        weights = None if self.positions is None else np.asarray(self.positions)
        where = draw_positions(positive.size, self.length, self.signal_tokens, weights, rng)
        tokens = rng.standard_normal((samples, self.length, self.dim))
        tokens[positive[:, None], where] += self.strength * self.direction
        return tokens, labels

    def stream(self, samples: int, rng: np.random.Generator, chunk: int | None = None) -> TokenStream:
        """As `sample`, in chunks that are generated anew, and alike, at every pass."""
        check_count("samples", samples, 1)
        size = max(1, CHUNK_FLOATS // (self.length * self.dim)) if chunk is None else chunk
        check_count("chunk", size, 1)
        return TokenStream(self, samples, size, int(rng.integers(2**63)))

    def labels(self, samples: int, rng: np.random.Generator) -> Array:
        """Labels (samples,) of -1 and +1."""
        return np.where(rng.random(samples) < self.prevalence, 1.0, -1.0)


@dataclass(frozen=True)
class TokenStream(Shown):
    """A sample that is never held whole: iterate as often as needed over (tokens, labels) chunks."""

    source: SparseTokens
    samples: int
    chunk: int
    seed: int

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for index, start in enumerate(range(0, self.samples, self.chunk)):
            rng = np.random.default_rng([self.seed, index])
            yield self.source.sample(min(self.chunk, self.samples - start), rng)
