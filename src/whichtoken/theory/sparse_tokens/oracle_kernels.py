"""Compiled sums and probabilities behind `limits`."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from whichtoken.theory.sparse_tokens.feature_law import highest_token


@njit(cache=True, nogil=True)
def weighted_sums(tokens, counts, grid):  # type: ignore[no-untyped-def]
    """Peak, sum of w and sum of w x, w = exp(tau (x - peak)): (temperatures, 3, points)."""
    points = len(tokens)
    out = np.zeros((len(grid), 3, points))
    for i in range(points):
        count = counts[i % len(counts)]
        peak = highest_token(tokens[i], count)
        for k in range(len(grid)):
            out[k, 0, i] = peak
            for t in range(count.size):
                if count[t] > 0:
                    weight = count[t] * math.exp(grid[k] * (tokens[i, t] - peak))
                    out[k, 1, i] += weight
                    out[k, 2, i] += weight * tokens[i, t]
    return out


@njit(cache=True, nogil=True)
def attention_mistakes(length, strength, tau, threshold, positive, negative):  # type: ignore[no-untyped-def]
    """Chance of a miss and, in both ways, of a false alarm per draw of the other tokens: (3, points)."""
    points = positive.shape[1]
    out = np.empty((3, points))
    for i in range(points):
        low, high = _quiet_range(tau, threshold, positive[0, i], positive[1, i], positive[2, i])
        out[0, i] = max(_below(high - strength) - _below(low - strength), 0.0)
        low, high = _quiet_range(tau, threshold, negative[0, i], negative[1, i], negative[2, i])
        out[1, i] = min(_below(-high) + _below(low), 1.0)
        out[2, i] = length * _below(-max(high, negative[0, i]))
    return out


@njit(cache=True, nogil=True)
def _below(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@njit(cache=True, nogil=True)
def _quiet_range(tau: float, threshold: float, peak: float, zeroth: float, first: float) -> tuple[float, float]:
    """Between which values of the last token x the score (s1 + x e^(tau x)) / (s0 + e^(tau x)) is below the threshold.

    With u = tau (x - threshold) these are the roots of u e^u = c, where c is negative if the score of the others is above
    the threshold; then a token of medium height pulls it down, and for c < -1/e none pulls it far enough.
    """
    gap = threshold * zeroth - first
    if gap == 0.0:
        return -math.inf, threshold
    log_c = math.log(tau * abs(gap)) + tau * (peak - threshold)
    if gap > 0:
        return -math.inf, threshold + _positive_root(log_c) / tau
    if log_c > -1:
        return -math.inf, -math.inf
    return threshold - _negative_root(log_c, True) / tau, threshold - _negative_root(log_c, False) / tau


@njit(cache=True, nogil=True)
def _positive_root(log_c: float) -> float:
    """Solve u + log u = log_c by Newton's method."""
    if log_c < -30:
        return math.exp(log_c)
    u = log_c - math.log(log_c) if log_c > 3 else math.log1p(math.exp(log_c))
    for _ in range(20):
        new = u * (1 + log_c - math.log(u)) / (1 + u)
        if abs(new - u) <= 1e-12 * u:
            return new
        u = new
    return u


@njit(cache=True, nogil=True)
def _negative_root(log_c: float, outer: bool) -> float:
    """Solve log v - v = log_c, for log_c <= -1, by Newton's method: the root above 1 or the one below."""
    depth = math.sqrt(2 * max(-1 - log_c, 0.0))  # from the double root v = 1
    if outer:
        v = 1 + depth + depth * depth / 3 if depth < 1 else -log_c + math.log(-log_c)
    else:
        v = 1 - depth + depth * depth / 3 if depth < 0.7 else math.exp(log_c + math.exp(log_c))
    for _ in range(20):
        if abs(1 - v) < 1e-8 or v < 1e-300:
            break
        new = v * (1 - (math.log(v) - v - log_c) / (1 - v))
        if abs(new - v) <= 1e-12 * v:
            return new
        v = new if new > 0 else v / 2
    return v
