"""Tokens in graded levels of importance: the label is written into few tokens, the clearer the higher their level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count, check_range
from whichtoken.data.token_counts import TokenCounts, count_ids
from whichtoken.display.shown import Shown

PAPER_NOISE = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)


@dataclass(frozen=True)
class LevelTokens(Shown):
    """Sequences of independent tokens from the K-level law of a random, balanced label.

    Level k has a positive and a negative set of N_k tokens each. With N the sum of the N_k, a token of the label's side and
    level k has probability share (1 - noise_k) / N, one of the other side share noise_k / N, an irrelevant token
    (1 - share) / irrelevant. Wu, Shevchenko, Oymak, Mondelli, "Attention with Trained Embeddings Provably Selects Important
    Tokens", equations (33)-(35). Tokens are ordered by level, positive before negative, irrelevant ones last.

    Parameters
    ----------
    length : int, default=256
        T, tokens of a sequence.
    noise : sequence of float, optional
        delta_k: probability that a token of level k is of the wrong side.
    set_sizes : sequence of int, optional
        N_k; by default 4 + 2**k, k = 1..K, which with the other defaults makes the paper's |S| = 2048 (its text has
        2**(k - 1), which does not).
    irrelevant : int, default=964
        Number of irrelevant tokens.
    share : float, default=0.05
        Expected share of relevant tokens in a sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import LevelTokens
    >>> law = LevelTokens(length=20, noise=(0.4, 0.1), irrelevant=30)
    >>> sample = law.sample(10, np.random.default_rng(0))
    >>> law.size, sample.counts.shape, sample.lengths.tolist()[:3]
    (58, (10, 58), [20, 20, 20])
    """

    length: int = 256
    noise: Sequence[float] = PAPER_NOISE
    set_sizes: Sequence[int] | None = None
    irrelevant: int = 964
    share: float = 0.05

    def __post_init__(self) -> None:
        check_count("length", self.length, 1)
        check_count("irrelevant", self.irrelevant, 1)
        check_range("share", self.share, 0.0, 1.0, include_high=True)
        for value in self.noise:
            check_range("noise", value, 0.0, 0.5, include_low=True, include_high=True)
        for size in self.sizes:
            check_count("set_sizes", size, 1)
        if len(self.sizes) != len(self.noise) or not len(self.noise):
            raise ValueError(
                f"set_sizes has {len(self.sizes)} levels and noise {len(self.noise)}; both need the same, >= 1"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """N_k, (K,)."""
        if self.set_sizes is None:
            return tuple(4 + 2**k for k in range(1, len(self.noise) + 1))
        return tuple(self.set_sizes)

    @property
    def size(self) -> int:
        """|S|."""
        return 2 * sum(self.sizes) + self.irrelevant

    @property
    def token_classes(self) -> NDArray[np.int8]:
        """+1, -1 or 0 (irrelevant), (|S|,)."""
        sides = np.tile(np.array([1, -1], dtype=np.int8), len(self.sizes))
        return np.concatenate([np.repeat(sides, np.repeat(self.sizes, 2)), np.zeros(self.irrelevant, np.int8)])

    @property
    def token_levels(self) -> NDArray[np.int64]:
        """1..K, or 0 (irrelevant), (|S|,)."""
        levels = np.repeat(np.arange(1, len(self.sizes) + 1), 2 * np.array(self.sizes))
        return np.concatenate([levels, np.zeros(self.irrelevant, np.int64)])

    @property
    def posterior_difference(self) -> NDArray[np.float64]:
        """P(label = +1 | token) - P(label = -1 | token), (|S|,)."""
        clarity = 1 - 2 * np.array([0.5, *self.noise])  # level 0 says nothing
        return np.asarray(self.token_classes * clarity[self.token_levels])

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Names such as `level8+3`, `level8-3`, `irrelevant12`, (|S|,)."""
        names = [f"level{k}{side}{i}" for k, n in enumerate(self.sizes, 1) for side in "+-" for i in range(n)]
        return (*names, *(f"irrelevant{i}" for i in range(self.irrelevant)))

    def probabilities(self, label: int) -> NDArray[np.float64]:
        """Law of one token given the label, (|S|,)."""
        relevant = self.share * (1 + label * self.posterior_difference) / 2 / sum(self.sizes)
        return np.where(self.token_classes == 0, (1 - self.share) / self.irrelevant, relevant)

    def sample(self, samples: int, rng: np.random.Generator) -> TokenCounts:
        """Counts (samples, |S|) and labels."""
        check_count("samples", samples, 1)
        labels = np.where(rng.random(samples) < 0.5, 1, -1).astype(np.int8)
        uniform = rng.random((samples, self.length))  # turned into ids by the inverse of the distribution function
        ids = np.empty(uniform.shape, dtype=np.int64)
        for label in (-1, 1):
            edges = np.cumsum(self.probabilities(label))
            edges[-1] = 1.0  # rounding must not leave a gap at the end
            ids[labels == label] = np.searchsorted(edges, uniform[labels == label], side="right")
        counts = count_ids(np.repeat(np.arange(samples), self.length), ids.ravel(), (samples, self.size))
        return TokenCounts(counts, labels, self.vocabulary)
