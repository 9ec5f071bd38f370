"""One-layer `<cls>` attention on token counts, in score space: everything that does not touch the d coordinates.

A document enters through its counts c_s and two numbers per token of the vocabulary, the selection score a_s = E_s.p and
the value g_s = E_s.v. Sums run in float64, whatever the embeddings are.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.attention.losses import logistic_with_slope
from whichtoken.attention.sequence import NO_NULL, fall_short, lead, weigh_shared

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]


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

    `weights` (vocabulary,) are e^(score - common reference): one exponential per token of the vocabulary, not per place.
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
        top, null, total = weigh_shared(weights, 0.0, scores, tokens, counts[start:stop], NO_NULL, shares)
        highest, shortfall = fall_short(values, tokens, shares, top, null, total)
        value, slope = logistic_with_slope(labels[row] * (highest - shortfall))
        loss += value
        pull = labels[row] * slope / len(rows) / total
        for k in range(stop - start):
            token = tokens[k]
            pulled = pull * shares[k]
            along_value[token] += pulled
            along_cls[token] += pulled * lead(values[token], highest, shortfall)
    return loss / len(rows)
