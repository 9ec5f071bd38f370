"""One-layer `<cls>` attention on token counts, in score space: everything that does not touch the d coordinates.

A document enters through its counts c_s and two numbers per token of the vocabulary, the selection score a_s = E_s.p and
the value g_s = E_s.v. Sums run in float64, whatever the embeddings are.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]

UNDERFLOW = 1e-250  # a document whose total weight is below this takes its own reference score


@njit(cache=True, nogil=True)
def attend(
    tokens: Integers, counts: Integers, weights: Floats, scores: Floats, values: Floats, shares: Floats
) -> tuple[float, float]:
    """Fill `shares` with the softmax weights q of one document; return (g_top, g_top - f), top the token of largest weight.

    Parameters
    ----------
    tokens, counts : (m,), the distinct tokens of the document and how often each occurs, m >= 1.
    weights : (vocabulary,), exp(score - common reference).
    scores, values : (vocabulary,)
    shares : (at least m,), overwritten.
    """
    total = 0.0
    for k in range(len(tokens)):
        shares[k] = counts[k] * weights[tokens[k]]
        total += shares[k]
    if not total > UNDERFLOW:
        total = 0.0
        peak = scores[tokens[0]]
        for token in tokens:
            peak = max(peak, scores[token])
        for k in range(len(tokens)):
            shares[k] = counts[k] * math.exp(scores[tokens[k]] - peak)
            total += shares[k]
    top = 0
    for k in range(1, len(tokens)):
        if shares[k] > shares[top]:
            top = k
    # relative to the top token: once it wins, g_s - f would otherwise be pure rounding
    highest = values[tokens[top]]
    shortfall = 0.0
    for k in range(len(tokens)):
        shares[k] /= total
        shortfall += shares[k] * (highest - values[tokens[k]])
    return highest, shortfall


@njit(cache=True, nogil=True)
def add_gradient(
    indptr: Integers,
    indices: Integers,
    counts: Integers,
    labels: NDArray[np.int8],
    rows: NDArray[np.int64],
    weights: Floats,
    scores: Floats,
    values: Floats,
    along_value: Floats,
    along_cls: Floats,
    shares: Floats,
) -> float:
    """Add the gradient of the mean logistic loss of `rows` to (`along_value`, `along_cls`); return the loss.

    With q the attention and r = -(y/n) sigmoid(-y f): A_s = sum_X r q_s and B_s = sum_X r q_s (g_s - f); the gradient of
    E_s is A_s v + B_s p.
    """
    loss = 0.0
    for row in rows:
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:  # an empty document: f = 0 and nothing to move
            loss += math.log(2.0)
            continue
        tokens = indices[start:stop]
        highest, shortfall = attend(tokens, counts[start:stop], weights, scores, values, shares)
        margin = labels[row] * (highest - shortfall)
        decay = math.exp(-abs(margin))
        loss += math.log1p(decay) + max(-margin, 0.0)
        pull = -labels[row] * (decay if margin > 0 else 1.0) / (1.0 + decay) / len(rows)
        for k in range(stop - start):
            token = tokens[k]
            pulled = pull * shares[k]
            along_value[token] += pulled
            along_cls[token] += pulled * ((values[token] - highest) + shortfall)
    return loss / len(rows)


@njit(cache=True, nogil=True)
def outputs(
    indptr: Integers, indices: Integers, counts: Integers, weights: Floats, scores: Floats, values: Floats
) -> Floats:
    """The model's output f for every document, (n,); zero for an empty one."""
    result = np.zeros(len(indptr) - 1)
    shares = np.empty(len(weights))
    for row in range(len(result)):
        start, stop = indptr[row], indptr[row + 1]
        if start < stop:
            highest, shortfall = attend(indices[start:stop], counts[start:stop], weights, scores, values, shares)
            result[row] = highest - shortfall
    return result
