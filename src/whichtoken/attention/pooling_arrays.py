"""The loops of `pooling` on whole arrays: digit for digit what `pooling_kernels` gives, without compiling or loading anything.

Sums run in the same order: `bincount` adds what it is given from the first to the last, and here the null tokens come first.
Exponentials are those of the C library, as in compiled code; numpy's own differ in the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

# outside of these bounds shared exponentials begin to lose what is e^-650 below the winner: a sequence takes its own reference
LEAST_TOTAL, MOST_TOTAL = 1e-18, 1e18
NOBODY = -1  # the winner of a sequence without tokens, or in which the null token wins


def pool_all(*arguments: Any) -> None:
    """Fill outputs (n, h, k); takes what the compiled loop takes."""
    scores, exponentials, reference, values, starts, tokens, amounts, log_null, outputs = arguments
    places = _Places.of(starts)
    for h in range(scores.shape[1]):
        found = scores[:, h].astype(np.float64, copy=False)
        own = found if tokens is None else found[tokens]
        if exponentials is None:
            weighed = _weigh(places, own, amounts, log_null[:, h])
        else:
            weighed = _weigh_shared(places, exponentials[:, h][tokens], reference[h], own, amounts, log_null[:, h])
        shares, top, null, total = weighed
        for k in range(values.shape[1]):
            each = values[:, k] if tokens is None else values[:, k][tokens]
            best = np.zeros(len(top), np.float64 if values.shape[1] == 1 else values.dtype)
            best[top != NOBODY] = each[top[top != NOBODY]]
            lacking = best[places.rows] - each  # of several values in their own precision
            if values.shape[1] == 1:
                lost = places.sums(null * best, shares * lacking) / total
            else:
                lost = places.sums(null / total * best, shares / total[places.rows] * lacking)
            outputs[:, h, k] = best - lost


def log_weights_of(scores: Any, starts: Any, tokens: Any, log_amounts: Any, log_null: Any, log_weights: Any) -> None:
    """Fill log_weights (h, N)."""
    places = _Places.of(starts)
    for h in range(scores.shape[1]):
        found = scores[:, h].astype(np.float64, copy=False)
        own = found if tokens is None else found[tokens]
        there = own if log_amounts is None else np.where(log_amounts > -math.inf, own, -math.inf)
        peak = places.maxima(there)
        some = peak > -math.inf
        peak = np.where(some, peak, 0.0)
        # differences of scores first: adding the logarithm of an amount to a large score would round it away
        gaps = (own - peak[places.rows]) + (0.0 if log_amounts is None else log_amounts)
        null_gap = log_null[:, h] - peak
        highest = places.maxima(gaps)
        top = places.first(gaps, np.where(highest > null_gap, highest, math.nan))
        best = np.where(some, np.maximum(highest, null_gap), 0.0)
        null = np.where(log_null[:, h] > -math.inf, _each(math.exp, np.where(some, null_gap - best, 0.0)), 0.0)
        lowered = gaps - best[places.rows]
        shares = _each(math.exp, lowered)
        shares[top[top != NOBODY]] = 0.0  # the winner's own share is 1
        rest = places.sums(np.where(top != NOBODY, null, 0.0), shares)
        lowered -= _each(math.log1p, rest)[places.rows]
        log_weights[h] = np.where(some[places.rows], lowered, -math.inf)


@dataclass(frozen=True, eq=False)
class _Places:
    """Which sequence every token belongs to."""

    starts: Ints  # (n + 1,)
    rows: Ints  # (N,)

    @classmethod
    def of(cls, starts: Any) -> _Places:
        return cls(np.asarray(starts, np.int64), np.repeat(np.arange(len(starts) - 1), np.diff(starts)))

    @cached_property
    def _both(self) -> Ints:
        return np.concatenate([np.arange(len(self.starts) - 1), self.rows])

    def sums(self, first: Array, terms: Array) -> Array:
        """`first` (n,) plus the terms (N,) of each sequence, in their order."""
        return np.bincount(self._both, np.concatenate([first, terms]), minlength=len(first)).astype(np.float64)

    def maxima(self, terms: Array) -> Array:
        """The largest term of each sequence, (n,); -inf without any."""
        found = np.full(len(self.starts) - 1, -math.inf)
        filled = np.diff(self.starts) > 0
        if filled.any():
            found[filled] = np.maximum.reduceat(terms, self.starts[:-1][filled])
        return found

    def first(self, terms: Array, wanted: Array) -> Ints:
        """Where the first term of each sequence is that equals `wanted` (n,); NOBODY if none does."""
        found = np.full(len(wanted), NOBODY)
        hits = np.flatnonzero(terms == wanted[self.rows])[::-1]
        found[self.rows[hits]] = hits
        return found


def _weigh(places: _Places, scores: Array, amounts: Any, log_null: Array) -> tuple[Array, Ints, Array, Array]:
    """Shares (N,), then winner, share of the null and total of each sequence."""
    there = scores if amounts is None else np.where(amounts > 0, scores, -math.inf)
    peak = np.maximum(places.maxima(there), log_null)
    some = peak > -math.inf
    peak = np.where(some, peak, 0.0)
    shares = _each(math.exp, np.where(some[places.rows], there - peak[places.rows], -math.inf))
    if amounts is not None:
        shares *= amounts
    null = _each(math.exp, np.where(some, log_null - peak, -math.inf))
    total = np.where(some, places.sums(null, shares), 1.0)
    return shares, _winners(places, shares, null), null, total


def _weigh_shared(
    places: _Places, exponentials: Array, reference: float, scores: Array, amounts: Any, log_null: Array
) -> tuple[Array, Ints, Array, Array]:
    """As `_weigh`, from e^{score - reference} of every token (N,)."""
    shares = exponentials if amounts is None else amounts * exponentials
    null = _each(math.exp, np.minimum(log_null - reference, 700.0))
    total = places.sums(null, shares)
    top = _winners(places, shares, null)
    lost = ~((total > LEAST_TOTAL) & (total < MOST_TOTAL))
    if lost.any():
        own = _weigh(places, scores, amounts, log_null)
        shares = np.where(lost[places.rows], own[0], shares)
        top, null, total = (np.where(lost, one, other) for one, other in zip(own[1:], (top, null, total), strict=True))
    return shares, top, null, total


def _winners(places: _Places, shares: Array, null: Array) -> Ints:
    most = places.maxima(shares)
    return places.first(shares, np.where(most > null, most, math.nan))


def _each(function: Callable[[float], float], numbers: Array) -> Array:
    return np.fromiter(map(function, numbers.tolist()), np.float64, len(numbers))
