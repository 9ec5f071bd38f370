"""Tokens in graded levels of importance: the label is written into few tokens, the clearer the higher their level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count, check_range
from whichtoken.datasets.token_counts import TokenCounts, count_ids
from whichtoken.display.shown import Shown

PAPER_NOISE = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)


@dataclass(frozen=True)
class LevelTokens(Shown):
    """Sequences of independent tokens from the K-level law of a random, balanced label.

    Reach for it to see whether training ranks tokens by their importance, which is known here for every token.

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
    >>> from whichtoken.datasets import LevelTokens
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


@dataclass(frozen=True)
class RelevantTokens(Shown):
    """Pairs of a positive and a negative sequence that differ only in their relevant token.

    Reach for it to test the theorems on selection under their own assumption, or with it broken in one way.

    Assumption 4 of Wu, Shevchenko, Oymak, Mondelli, "Attention with Trained Embeddings Provably Selects Important Tokens".
    Tokens are ordered positive, negative, irrelevant.

    Parameters
    ----------
    length : int, default=8
        T, tokens of a sequence.
    relevant : int, default=4
        Relevant tokens of each label.
    irrelevant : int, default=24
        Irrelevant tokens, drawn uniformly with repetition.
    equal : bool, default=True
        Every relevant token in equally many sequences; otherwise drawn with weights 1/rank.
    relevant_per_sequence : int, default=1
        Different relevant tokens of a sequence, all of its label; more than one breaks Assumption 4.
    paired : bool, default=True
        The two sequences of a pair share their irrelevant tokens; otherwise these get a signed frequency by chance.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import RelevantTokens
    >>> sample = RelevantTokens(length=4, relevant=2, irrelevant=6).sample(2, np.random.default_rng(0))
    >>> sample.counts.shape, sample.labels.tolist()
    ((4, 10), [1, -1, 1, -1])
    """

    length: int = 8
    relevant: int = 4
    irrelevant: int = 24
    equal: bool = True
    relevant_per_sequence: int = 1
    paired: bool = True

    def __post_init__(self) -> None:
        for name in ("length", "relevant", "irrelevant", "relevant_per_sequence"):
            check_count(name, getattr(self, name), 1)
        if self.relevant_per_sequence > min(self.relevant, self.length):
            raise ValueError(
                f"relevant_per_sequence={self.relevant_per_sequence} must be at most "
                f"relevant={self.relevant} and length={self.length}"
            )

    @property
    def size(self) -> int:
        """|S|."""
        return 2 * self.relevant + self.irrelevant

    @property
    def token_classes(self) -> NDArray[np.int8]:
        """+1, -1 or 0 (irrelevant), (|S|,)."""
        return np.repeat(np.array([1, -1, 0], dtype=np.int8), [self.relevant, self.relevant, self.irrelevant])

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Names such as `positive0`, `negative0`, `irrelevant0`, (|S|,)."""
        sets = {"positive": self.relevant, "negative": self.relevant, "irrelevant": self.irrelevant}
        return tuple(f"{name}{i}" for name, count in sets.items() for i in range(count))

    def sample(self, pairs: int, rng: np.random.Generator) -> TokenCounts:
        """Counts (2 pairs, |S|) and labels +1, -1, +1, -1, ..."""
        check_count("pairs", pairs, 1)
        period = self.relevant // math.gcd(self.relevant, self.relevant_per_sequence)
        if self.equal and pairs % period:
            raise ValueError(
                f"pairs={pairs} must be a multiple of {period} for equal frequencies of relevant={self.relevant} tokens"
            )
        rest = self.length - self.relevant_per_sequence
        noise = rng.integers(self.irrelevant, size=(pairs, 1 if self.paired else 2, rest)) + 2 * self.relevant
        ids = np.empty((pairs, 2, self.length), dtype=np.int64)
        ids[:, :, :rest] = noise
        ids[:, 0, rest:] = self._relevant(pairs, rng)
        ids[:, 1, rest:] = self._relevant(pairs, rng) + self.relevant
        counts = count_ids(np.repeat(np.arange(2 * pairs), self.length), ids.ravel(), (2 * pairs, self.size))
        return TokenCounts(counts, np.tile(np.array([1, -1], dtype=np.int8), pairs), self.vocabulary)

    def _relevant(self, pairs: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Index of the relevant tokens within their side, (pairs, relevant_per_sequence)."""
        if self.equal:
            return np.arange(pairs * self.relevant_per_sequence).reshape(pairs, -1) % self.relevant
        weights = 1 / np.arange(1, self.relevant + 1)
        # largest u**(1/w) first: draws without repetition, by weight, for all sequences at once
        keys = np.log(rng.random((pairs, self.relevant))) / weights
        return np.argsort(-keys, axis=1)[:, : self.relevant_per_sequence]
