"""Sequences with exactly one token that matters, among tokens whose signed frequency is exactly zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count
from whichtoken.data.token_counts import TokenCounts, count_ids
from whichtoken.display.shown import Shown


@dataclass(frozen=True)
class RelevantTokens(Shown):
    """Pairs of a positive and a negative sequence that differ only in their relevant token.

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
    >>> from whichtoken.data import RelevantTokens
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
