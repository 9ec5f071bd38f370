"""What the tokens that a head picks have in common: how often they occur, and what they say about labels.

Rare tokens seem to say much about labels, by chance alone, and heads may like or dislike rare tokens: a plain correlation
would find almost every head related to almost any labels. So the posterior difference of a token is measured in its own
standard errors, what frequency explains is taken out of both sides, and the p-value is that of a permutation test: the same
correlation with the labels in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import rankdata

LEAST_OCCURRENCES = 5  # texts in which a token must occur before its pick rate is compared with anything
LEAST_TOKENS = 10
PERMUTATIONS = 1999


@dataclass(frozen=True)
class Relations:
    """Rank correlations of a head's pick rates over tokens; not a number where there are too few."""

    frequency: float = math.nan
    # with the posterior difference of the token, in standard errors; frequency held
    label_correlation: float = math.nan
    # with |signed frequency|, the size of its first gradient step; frequency not held
    signed_frequency: float = math.nan
    p_value: float = math.nan  # of label_correlation


class TokenRelations:
    """The tokens of a corpus and what they say about labels, ready to be compared with the picks of many heads."""

    def __init__(self, ids: Sequence[NDArray[np.int32]], classes: NDArray[np.int64] | None, seed: int = 0) -> None:
        rows = np.concatenate([np.full(len(np.unique(text)), i) for i, text in enumerate(ids)])
        found = np.concatenate([np.unique(text) for text in ids])
        names, places, counts = np.unique(found, return_inverse=True, return_counts=True)
        keep = counts >= LEAST_OCCURRENCES
        self.tokens, self.counts = names[keep], counts[keep]
        incidence = sparse.csr_matrix((np.ones(len(rows)), (places, rows)), shape=(len(names), len(ids)))
        self._incidence = incidence[np.flatnonzero(keep)]
        self._frequency = _standard(self.counts.astype(float))
        self._labelled = classes is not None and len(self.tokens) >= LEAST_TOKENS
        if classes is not None and self._labelled:
            onehot = np.eye(int(classes.max()) + 1)[classes]  # (texts, classes)
            self._posterior = self._held(self._surprise(onehot))
            self._signed = _standard(self._surprise(onehot) * np.sqrt(self.counts))
            rng = np.random.default_rng(seed)
            orders = (rng.permutation(len(ids)) for _ in range(PERMUTATIONS))
            self._null = np.stack([self._held(self._surprise(onehot[order])) for order in orders])

    def of(self, rates: dict[int, float]) -> Relations:
        """How the pick rates of a head go with frequency and labels."""
        rate = np.array([rates.get(int(token), 0.0) for token in self.tokens])
        if len(rate) < LEAST_TOKENS or np.ptp(rate) == 0:
            return Relations()
        ranks = _standard(rate)
        frequency = float(np.dot(ranks, self._frequency))
        if not self._labelled:
            return Relations(frequency)
        held = self._held(rate)
        observed = float(np.dot(held, self._posterior))
        p_value = (1 + int((np.dot(self._null, held) >= observed - 1e-12).sum())) / (1 + PERMUTATIONS)
        return Relations(frequency, observed, float(np.dot(ranks, self._signed)), p_value)

    def _surprise(self, onehot: NDArray[np.float64]) -> NDArray[np.float64]:
        """Largest difference, over classes, between their share among the texts with a token and among all: (tokens,).

        In standard errors, up to a constant: a token of four texts differs twice as much by chance as one of sixteen.
        """
        inside = np.asarray(self._incidence @ onehot) / self.counts[:, None]
        return np.asarray(np.abs(inside - onehot.mean(0)).max(1) * np.sqrt(self.counts))

    def _held(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ranks without what frequency explains of them, with norm 1."""
        ranks = _standard(values)
        rest = ranks - np.dot(ranks, self._frequency) * self._frequency
        norm = np.linalg.norm(rest)
        return np.asarray(rest / norm if norm > 1e-9 else rest)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks with mean 0 and norm 1, so that products are rank correlations."""
    ranks = rankdata(values) - (len(values) + 1) / 2
    norm = np.linalg.norm(ranks)
    return np.asarray(ranks / norm if norm > 0 else ranks)
