"""Attention on one sequence, compiled: the parts of which every kernel is made, and the kernels of `pooling`.

A sequence has scores a_t, amounts c_t (how often a token occurs) and values g_t. Its weights are q_t = c_t e^{a_t} / (e^null +
sum_s c_s e^{a_s}) and its output is f = sum_t q_t g_t. Once one token wins, g_t - f is the difference of two nearly equal numbers
and 1 - q_top is rounding; so everything here is taken relative to the winner: f = g_top - shortfall, with shortfall =
sum_t q_t (g_top - g_t), and d f / d a_t = q_t ((g_t - g_top) + shortfall), which keep their digits at any spread of scores.

`scores` and `values` hold one entry per token of the sequence, or, with `tokens`, one per entry of a vocabulary in which
`tokens` looks them up; kernels on counts never gather. `tokens` and `amounts` may be None; which of them are is decided when a
kernel is compiled and costs nothing. An amount of 0 and a score of -inf are as absent. `log_null` is -inf where nothing
is allowed to attend to nothing. Sums run in double precision whatever the arrays are.

Shares are weights before they are divided by their total. What has no token (and no null) has total 1 and shares of 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from whichtoken.attention.pooling import LEAST_TOTAL, MOST_TOTAL, NO_WINNER

# said in full: numba lets a function inherit the float rules of whichever caller compiles it first, and a sum in another order
# undoes differences to the winner
EXACT: dict[str, Any] = {"nogil": True, "forceinline": True, "fastmath": False, "error_model": "numpy"}

# a kernel that passes it must not be compiled with `ninf` (fastmath=True): infinities are then undefined
NO_NULL = -math.inf
VANISHED = -746.0  # exponentials are zero from here on, and take three times as long


@njit(**EXACT)
def size_of(scores: Any, tokens: Any) -> int:
    """Number of tokens in the sequence."""
    return len(scores) if tokens is None else len(tokens)


@njit(**EXACT)
def place(tokens: Any, t: int) -> int:
    """Where the score and the value of token t are."""
    return t if tokens is None else tokens[t]


@njit(**EXACT)
def weigh(scores: Any, tokens: Any, amounts: Any, log_null: float, shares: Any) -> tuple[int, float, float]:
    """Fill `shares` (at least m,), relative to the highest score; return the winner, the share of the null and the total."""
    size = size_of(scores, tokens)
    peak = log_null
    for t in range(size):
        if amounts is None or amounts[t] > 0:
            peak = max(peak, np.float64(scores[place(tokens, t)]))
    top, null, total = NO_WINNER, 0.0, 1.0
    if peak == -math.inf:
        shares[:size] = 0.0
        return top, null, total
    if log_null > -math.inf:
        null = math.exp(log_null - peak)
    total, most = null, null
    for t in range(size):
        share = 0.0
        if amounts is None:
            gap = np.float64(scores[place(tokens, t)]) - peak
            share = 0.0 if gap <= VANISHED else math.exp(gap)
        elif amounts[t] > 0:
            share = amounts[t] * math.exp(np.float64(scores[place(tokens, t)]) - peak)
        shares[t] = share
        total += share
        if share > most:
            top, most = t, share
    return top, null, total


@njit(**EXACT)
def weigh_shared(
    exponentials: Any, reference: float, scores: Any, tokens: Any, amounts: Any, log_null: float, shares: Any
) -> tuple[int, float, float]:
    """As `weigh`, from `exponentials` e^{score - reference} that many sequences share: no exponential per token."""
    size = size_of(scores, tokens)
    null = 0.0
    if log_null > -math.inf:
        null = math.exp(min(log_null - reference, 700.0))
    total = null
    for t in range(size):
        share = exponentials[place(tokens, t)]
        shares[t] = share if amounts is None else amounts[t] * share
        total += shares[t]
    if not LEAST_TOTAL < total < MOST_TOTAL:
        return weigh(scores, tokens, amounts, log_null, shares)  # type: ignore[no-any-return]
    top, most = NO_WINNER, null
    for t in range(size):
        if shares[t] > most:
            top, most = t, shares[t]
    return top, null, total


@njit(**EXACT)
def weigh_in_logs(
    scores: Any, tokens: Any, log_amounts: Any, log_null: float, log_weights: Any, shares: Any
) -> tuple[int, float, float]:
    """As `weigh`, relative to the winner's share, and fill `log_weights` with log q, right however far below the winner.

    `log_amounts` stands for the amounts, -inf for none. The logarithm of the null's weight is `log(null / total)` unless
    that underflows.
    """
    size = size_of(scores, tokens)
    peak = -math.inf
    for t in range(size):
        if log_amounts is None or log_amounts[t] > -math.inf:
            peak = max(peak, np.float64(scores[place(tokens, t)]))
    if peak == -math.inf:
        shares[:size] = 0.0
        log_weights[:size] = -math.inf
        return NO_WINNER, 1.0 if log_null > -math.inf else 0.0, 1.0
    # differences of scores first: adding the logarithm of an amount to a large score would round it away
    top, best = NO_WINNER, log_null - peak
    for t in range(size):
        gap = -math.inf
        if log_amounts is None:
            gap = np.float64(scores[place(tokens, t)]) - peak
        elif log_amounts[t] > -math.inf:
            gap = (np.float64(scores[place(tokens, t)]) - peak) + log_amounts[t]
        log_weights[t] = gap
        if gap > best:
            top, best = t, gap
    null, rest = 0.0, 0.0  # the winner's own share is 1
    if log_null > -math.inf:
        null = math.exp((log_null - peak) - best)
        if top != NO_WINNER:
            rest = null
    for t in range(size):
        log_weights[t] -= best
        shares[t] = math.exp(log_weights[t])
        if t != top:
            rest += shares[t]
    log_total = math.log1p(rest)
    for t in range(size):
        log_weights[t] -= log_total
    return top, null, 1.0 + rest


@njit(**EXACT)
def shortfall_of(values: Any, tokens: Any, shares: Any, top: int, null: float, total: float) -> tuple[float, float]:
    """The winner's value and by how much the output falls short of it: f = first - second."""
    highest = 0.0 if top == NO_WINNER else np.float64(values[place(tokens, top)])
    lost = null * highest
    for t in range(size_of(values, tokens)):
        lost += shares[t] * (highest - values[place(tokens, t)])
    return highest, lost / total


@njit(**EXACT)
def lead(value: float, highest: float, shortfall: float) -> float:
    """Value of a token less the output, g_t - f; times q_t it is d f / d a_t. Never sum it in another order."""
    return (value - highest) + shortfall


@njit(**EXACT)
def value_of(values: Any, tokens: Any, top: int, j: int) -> float:
    """The winner's j-th value, 0 where the null token wins."""
    return 0.0 if top == NO_WINNER else np.float64(values[place(tokens, top), j])


@njit(**EXACT)
def shortfalls_of(values: Any, tokens: Any, shares: Any, top: int, null: float, total: float, shortfalls: Any) -> None:
    """`shortfall_of` for values (m, k) or (vocabulary, k), row by row as they lie in memory: fill `shortfalls` (k,)."""
    for j in range(len(shortfalls)):
        shortfalls[j] = null / total * value_of(values, tokens, top, j)
    for t in range(size_of(values, tokens)):
        row, share = values[place(tokens, t)], shares[t] / total
        if top == NO_WINNER:
            for j in range(len(shortfalls)):
                shortfalls[j] -= share * row[j]
        else:
            best = values[place(tokens, top)]
            for j in range(len(shortfalls)):
                shortfalls[j] += share * (best[j] - row[j])


@njit(**EXACT)
def own_part(array: Any, starts: Any, i: int) -> Any:
    """What belongs to sequence i."""
    return None if array is None else array[starts[i] : starts[i + 1]]


@njit(**EXACT)
def rows_of(array: Any, tokens: Any, starts: Any, i: int) -> Any:
    """Rows of sequence i, or the whole vocabulary for its tokens to look into."""
    return array[starts[i] : starts[i + 1]] if tokens is None else array


@njit(**EXACT)
def weigh_one(
    scores: Any, exponentials: Any, reference: Any, h: int, tokens: Any, amounts: Any, log_null: float, shares: Any
) -> Any:
    if exponentials is None:
        return weigh(scores[:, h], tokens, amounts, log_null, shares)
    return weigh_shared(exponentials[:, h], reference[h], scores[:, h], tokens, amounts, log_null, shares)


@njit(**EXACT)
def longest(starts: Any) -> int:
    longest = 0
    for i in range(len(starts) - 1):
        longest = max(longest, starts[i + 1] - starts[i])
    return longest


@njit(cache=True, **EXACT)
def pool_all(
    scores: Any, exponentials: Any, reference: Any, values: Any, starts: Any, tokens: Any, amounts: Any, log_null: Any,
    outputs: Any,
) -> None:  # fmt: skip
    """Fill outputs (n, h, k)."""
    shares = np.empty(longest(starts))
    for i in range(len(starts) - 1):
        a, g = rows_of(scores, tokens, starts, i), rows_of(values, tokens, starts, i)
        part, counts = own_part(tokens, starts, i), own_part(amounts, starts, i)
        for h in range(scores.shape[1]):
            top, null, total = weigh_one(a, exponentials, reference, h, part, counts, log_null[i, h], shares)
            if g.shape[1] == 1:
                highest, shortfall = shortfall_of(g[:, 0], part, shares, top, null, total)
                outputs[i, h, 0] = highest - shortfall
            else:
                shortfalls_of(g, part, shares, top, null, total, outputs[i, h])
                for k in range(g.shape[1]):
                    outputs[i, h, k] = value_of(g, part, top, k) - outputs[i, h, k]


@njit(cache=True, **EXACT)
def log_weights_of(scores: Any, starts: Any, tokens: Any, log_amounts: Any, log_null: Any, log_weights: Any) -> None:
    """Fill log_weights (h, N)."""
    shares = np.empty(longest(starts))
    for i in range(len(starts) - 1):
        a = rows_of(scores, tokens, starts, i)
        part, logs = own_part(tokens, starts, i), own_part(log_amounts, starts, i)
        for h in range(scores.shape[1]):
            weigh_in_logs(a[:, h], part, logs, log_null[i, h], log_weights[h, starts[i] : starts[i + 1]], shares)


@njit(cache=True, **EXACT)
def pull_back(
    scores: Any, exponentials: Any, reference: Any, values: Any, starts: Any, tokens: Any, amounts: Any, log_null: Any,
    upstream: Any, d_scores: Any, d_values: Any, d_null: Any,
) -> None:  # fmt: skip
    """Add the slopes in scores (N, h), values (N, k) and null scores (n, h) of those in the outputs, (n, h, k)."""
    shares, along = np.empty((2, longest(starts)))
    for i in range(len(starts) - 1):
        a, g = rows_of(scores, tokens, starts, i), rows_of(values, tokens, starts, i)
        da, dg = rows_of(d_scores, tokens, starts, i), rows_of(d_values, tokens, starts, i)
        part, counts = own_part(tokens, starts, i), own_part(amounts, starts, i)
        for h in range(scores.shape[1]):
            slopes = upstream[i, h]
            top, null, total = weigh_one(a, exponentials, reference, h, part, counts, log_null[i, h], shares)
            # with several values, what counts is their sum along the slopes, again less that of the winner
            shortfall, best = 0.0, 0.0
            for t in range(size_of(a, part)):
                s, share = place(part, t), shares[t] / total
                along[t] = 0.0
                for k in range(len(slopes)):
                    along[t] += slopes[k] * (g[s, k] - value_of(g, part, top, k))
                    dg[s, k] += share * slopes[k]
                shortfall -= share * along[t]
            for k in range(len(slopes)):
                best += slopes[k] * value_of(g, part, top, k)
            shortfall += null / total * best
            for t in range(size_of(a, part)):
                da[place(part, t), h] += shares[t] / total * lead(along[t], 0.0, shortfall)
            d_null[i, h] = null / total * lead(-best, 0.0, shortfall)
