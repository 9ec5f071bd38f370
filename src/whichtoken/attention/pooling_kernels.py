"""The compiled loops of `pooling`: sequence after sequence, query after query, with arguments that are checked already."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from whichtoken.attention.sequence import (
    EXACT,
    fall_short,
    fall_short_rows,
    lead,
    place,
    size_of,
    value_of,
    weigh,
    weigh_in_logs,
    weigh_shared,
)


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
                highest, shortfall = fall_short(g[:, 0], part, shares, top, null, total)
                outputs[i, h, 0] = highest - shortfall
            else:
                fall_short_rows(g, part, shares, top, null, total, outputs[i, h])
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
