"""Sequences in which few tokens of the positive class carry a weak signal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_count, check_range
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError

LOSSES = ("logistic", "square", "hinge")


@dataclass(frozen=True)
class Task(Shown):
    """Binary classification of sequences in which few tokens of the positive class carry a weak signal.

    Reach for it to ask the theory of sparse tokens about a task; `SparseTokens` draws data of the same task.

    A negative sequence is `length` standard Gaussian tokens. A positive one has `strength` times a hidden unit vector
    added to `signal_tokens` of its tokens, at positions drawn anew for every sequence (Barnfield, Cui, Lu, arXiv
    2509.25153, section 2).

    Attributes
    ----------
    length : int
        L, tokens of a sequence.
    signal_tokens : int
        R, how many of them carry the signal in a positive sequence.
    strength : float
        Theta, size of the signal in units of the noise.
    prevalence : float
        Pi, probability of a positive sequence.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import Task
    >>> task = Task(length=10, signal_tokens=1, strength=5.0, prevalence=0.3)
    >>> round(task.separation, 4), task.trivial_error
    (1.5811, 0.3)
    """

    length: int
    signal_tokens: int
    strength: float
    prevalence: float

    def __post_init__(self) -> None:
        check_count("length", self.length, 2)
        check_signal_tokens(self.signal_tokens, self.length)
        check_range("strength", self.strength, 0.0, math.inf, include_low=True)
        check_range("prevalence", self.prevalence, 0.0, 1.0)

    @property
    def separation(self) -> float:
        """Distance of the two class means in units of the noise, for any linear model: strength * R / sqrt(L)."""
        return self.strength * self.signal_tokens / math.sqrt(self.length)

    @property
    def trivial_error(self) -> float:
        """Error of the better one of the two constant answers."""
        return min(self.prevalence, 1 - self.prevalence)


def check_signal_tokens(signal_tokens: int, length: int) -> None:
    """Refuse a number of signal tokens that sequences of this length do not have."""
    check_count("signal_tokens", signal_tokens, 1)
    if signal_tokens >= length:
        raise UsageError("{signal_tokens} must be smaller than {length}", signal_tokens=signal_tokens, length=length)


Array = NDArray[np.float64]


def check_positions(positions: ArrayLike | None, length: int, signal_tokens: int) -> Array | None:
    """Position weights as an array that sums to one; None, the uniform law, passes through."""
    if positions is None:
        return None
    weights = np.asarray(positions, dtype=float)
    if weights.shape != (length,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"positions of shape {weights.shape} must be length={length} finite weights, none negative")
    if (above := np.count_nonzero(weights)) < signal_tokens:
        raise ValueError(f"positions must have at least signal_tokens={signal_tokens} weights above 0; it has {above}")
    return np.asarray(weights / weights.sum())


def draw_positions(
    count: int, length: int, signal_tokens: int, weights: Array | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Distinct positions, shape (count, signal_tokens): drawn one after the other in proportion to the weights."""
    if weights is None:
        keys = rng.random((count, length))
    else:
        with np.errstate(divide="ignore"):
            keys = np.log(weights) + rng.gumbel(size=(count, length))  # the largest keys are such a draw
    return np.argpartition(keys, length - signal_tokens, axis=1)[:, length - signal_tokens :]


CHUNK_FLOATS = 1 << 21  # 16 MB of tokens at a time


@dataclass(frozen=True, eq=False)
class SparseTokens(Task):
    """Gaussian sequences; in positive ones `strength * signal` is added to `signal_tokens` of the tokens.

    Reach for it to test a detector of weak, rare signals in long sequences against what the theory predicts.

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
    >>> from whichtoken.datasets import SparseTokens
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
