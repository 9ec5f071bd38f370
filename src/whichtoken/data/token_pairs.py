"""Sequences whose label is written into a pair of tokens and into no single one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.checks import check_count, check_range
from whichtoken.data.token_counts import TokenCounts, count_ids
from whichtoken.display.shown import Shown


@dataclass(frozen=True)
class TokenPairs(Shown):
    """Each sequence holds one left token i, one right token j and irrelevant ones: positive if they match, i = j.

    Labels are balanced; a negative sequence has any other right token, and each label is then turned over with probability
    `noise`. Every single token is as frequent under both labels, so its posterior difference is zero, while that of a pair is
    1 - 2 noise or its negative. Left tokens come first, then right tokens, then irrelevant ones.

    Parameters
    ----------
    kinds : int, default=4
        Number of left tokens, and of right tokens.
    length : int, default=8
        Tokens of a sequence.
    irrelevant : int, default=24
        Number of irrelevant tokens in the vocabulary.
    noise : float, default=0.0
        Probability that a label is turned over.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import TokenPairs
    >>> law = TokenPairs(kinds=2, length=4, irrelevant=5)
    >>> law.posterior_difference.tolist(), law.sample(6, np.random.default_rng(0)).counts.shape
    ([[1.0, -1.0], [-1.0, 1.0]], (6, 9))
    """

    kinds: int = 4
    length: int = 8
    irrelevant: int = 24
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_count("kinds", self.kinds, 2)
        check_count("length", self.length, 2)
        check_count("irrelevant", self.irrelevant, 1)
        check_range("noise", self.noise, 0.0, 0.5, include_low=True)

    @property
    def size(self) -> int:
        """|S|."""
        return 2 * self.kinds + self.irrelevant

    @property
    def posterior_difference(self) -> NDArray[np.float64]:
        """P(+1 | pair) - P(-1 | pair), (kinds, kinds), left token first."""
        return (1 - 2 * self.noise) * (2 * np.eye(self.kinds) - 1)

    def sample(self, samples: int, rng: np.random.Generator) -> TokenCounts:
        """Counts (samples, |S|) and labels."""
        check_count("samples", samples, 1)
        signs = np.where(rng.random(samples) < 0.5, 1, -1)
        left, shift = rng.integers(self.kinds, size=samples), rng.integers(1, self.kinds, size=samples)
        right = np.where(signs > 0, left, (left + shift) % self.kinds)
        rest = 2 * self.kinds + rng.integers(self.irrelevant, size=(samples, self.length - 2))
        labels = np.where(rng.random(samples) < self.noise, -signs, signs)
        return TokenCounts(self._counts(np.column_stack([left, self.kinds + right, rest])), labels)

    def pairs(self) -> TokenCounts:
        """Every pair alone, as a sequence of two tokens, with its sign; in the order of `posterior_difference`."""
        left, right = np.divmod(np.arange(self.kinds**2), self.kinds)
        return TokenCounts(
            self._counts(np.column_stack([left, self.kinds + right])), np.sign(self.posterior_difference).ravel()
        )

    def _counts(self, ids: NDArray[np.int64]) -> csr_array:
        return count_ids(np.repeat(np.arange(len(ids)), ids.shape[1]), ids.ravel(), (len(ids), self.size))
