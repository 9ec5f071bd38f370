"""Loss and exact gradient of the one-layer group transformer, one pass over the batch.

The encodings are shared by the batch, so every product of a sample runs over its d variables and not over the d + D
entries of a token: W enters through four small matrices, and the gradient is gathered in the same four.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
PART = 512  # samples that one thread takes at a time
LANES = 32  # samples side by side: a few vector registers, and little to do beside them
_ROUNDER = 1.5 * 2.0**52  # adding it leaves the nearest integer in the lowest bits
_INVERSE_LN2, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_T2, _T3, _T4, _T5, _T6, _T7, _T8, _T9, _T10, _T11, _T12 = (1.0 / math.factorial(k) for k in range(2, 13))


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Kept from step to step: to start threads takes a good part of a step. They do not outlive a fork."""
    return ThreadPoolExecutor(threads)


class Blocks(NamedTuple):
    """W and v as a sample of d variables per group meets them; their gradients have the same six shapes."""

    content: Array  # (d, d): W_11
    query: Array  # (d, groups): column j is W_12 p_j
    key: Array  # (d, groups): column i is W_21^T p_i
    pair: Array  # (groups, groups): p_i^T W_22 p_j, key first
    value: Array  # (d,): v_1
    position: Array  # (groups,): p_i^T v_2


def logistic_loss_and_gradient(
    X: Array, y: Array, encodings: Array, W: Array, v: Array, threads: int = 1
) -> tuple[float, Array, Array]:
    """Mean logistic loss of y f(Z), f(Z) = v^T Z S 1, and its gradients in W and v.

    With h_i = v^T z_i, mean_j = sum_i S_ij h_i, g = sigmoid(-y f) and C_ij = S_ij (h_i - mean_j), the gradients are
    -E[g y Z C Z^T] and -E[g y Z S 1].

    Parameters
    ----------
    X : array, shape (batch, groups, group_dim)
    y : array, shape (batch,)
        -1 or +1.
    encodings : array, shape (groups, encoding_dim)
    W : array, shape (group_dim + encoding_dim, group_dim + encoding_dim)
    v : array, shape (group_dim + encoding_dim,)
    threads : int
        How many share the batch. Parts of it are summed in their order, so the numbers are the same for any.
    """
    d, P = X.shape[2], encodings
    blocks = Blocks(
        content=np.ascontiguousarray(W[:d, :d]),
        query=W[:d, d:] @ P.T,
        key=np.ascontiguousarray((P @ W[d:, :d]).T),
        pair=P @ W[d:, d:] @ P.T,
        value=np.ascontiguousarray(v[:d]),
        position=P @ v[d:],
    )
    X = np.ascontiguousarray(X)
    parts = [slice(start, start + PART) for start in range(0, len(X), PART)]

    def share(part: slice) -> tuple[float, Blocks]:
        gradient = Blocks(*map(np.zeros_like, blocks))
        return _accumulate(X[part], y[part], 1.0 / len(X), blocks, gradient), gradient

    spread = _pool(threads, os.getpid()).map if threads > 1 and len(parts) > 1 else map
    shares = list(spread(share, parts))
    loss = sum(part_loss for part_loss, _ in shares)
    gradient = shares[0][1]
    for _, part_gradient in shares[1:]:
        for whole, part in zip(gradient, part_gradient, strict=True):
            whole += part
    W_gradient = np.block([[gradient.content, gradient.query @ P], [(gradient.key @ P).T, P.T @ gradient.pair @ P]])
    return loss, W_gradient, np.concatenate([gradient.value, gradient.position @ P])


@njit(nogil=True, error_model="numpy", forceinline=True)
def exponential(x: float) -> float:
    """e^x for x <= 0, 0 below e^-708, without a call into a library: loops over it become vector instructions.

    x = n ln 2 + r with |r| <= ln(2) / 2; the polynomial is that of Taylor, which there leaves out 2e-16.
    """
    lifted = x * _INVERSE_LN2 + _ROUNDER
    n = lifted - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    high = _T8 + r * (_T9 + r * (_T10 + r * (_T11 + r * _T12)))
    power = 1.0 + r * (1.0 + r * (_T2 + r * (_T3 + r * (_T4 + r * (_T5 + r * (_T6 + r * (_T7 + r * high)))))))
    bits = np.int64(np.float64(power).view(np.int64) + (np.float64(lifted).view(np.int64) << np.int64(52)))
    return bits.view(np.float64) if x > -708.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _accumulate(X: Array, y: Array, weight: float, blocks: Blocks, gradient: Blocks) -> float:
    """Sum of the losses times `weight`; its gradient is added to `gradient`.

    LANES samples stand next to each other in memory, the last index of all arrays: the compiler makes vector instructions of
    loops over them, however few groups and variables there are, as long as each loop writes one array.
    """
    batch, groups, d = X.shape
    lanes = min(LANES, batch)
    x, right = np.empty((2, groups, d, lanes))  # W_11 x_j + W_12 p_j
    S = np.empty((groups, groups, lanes))  # scores, weights, then -dL/dscores; key first
    h, received = np.empty((2, groups, lanes))
    highest, total, mean, reference, most, pull = np.empty((6, lanes))
    content, pair = np.zeros((d, d, lanes)), np.zeros((groups, groups, lanes))
    query, key = np.zeros((2, groups, d, lanes))
    value, position = np.zeros((d, lanes)), np.zeros((groups, lanes))
    loss = 0.0
    for first in range(0, batch, lanes):
        present = min(lanes, batch - first)
        x[...] = 0.0
        for s in range(present):
            for i in range(groups):
                for k in range(d):
                    x[i, k, s] = X[first + s, i, k]
        for i in range(groups):
            h[i] = blocks.position[i]
            for k in range(d):
                right[i, k] = blocks.query[k, i]
                factor = blocks.value[k]
                for s in range(lanes):
                    h[i, s] += x[i, k, s] * factor
                for m in range(d):
                    factor = blocks.content[k, m]
                    for s in range(lanes):
                        right[i, k, s] += factor * x[i, m, s]
        most[:], reference[:] = -1.0, 0.0
        received[...] = 0.0
        for j in range(groups):
            highest[:], total[:], mean[:] = -np.inf, 0.0, 0.0
            for i in range(groups):
                S[i, j] = blocks.pair[i, j]
                for k in range(d):
                    factor = blocks.key[k, i]
                    for s in range(lanes):
                        S[i, j, s] += x[i, k, s] * right[j, k, s] + factor * x[j, k, s]
                for s in range(lanes):
                    highest[s] = max(highest[s], S[i, j, s])
            for i in range(groups):
                for s in range(lanes):
                    S[i, j, s] = exponential(S[i, j, s] - highest[s])
                for s in range(lanes):
                    total[s] += S[i, j, s]
            for s in range(lanes):
                total[s] = 1.0 / total[s]
            for i in range(groups):
                for s in range(lanes):
                    S[i, j, s] *= total[s]
                for s in range(lanes):
                    received[i, s] += S[i, j, s]
        # relative to the group attended most: its h_i - mean_j would be pure rounding once it wins
        for i in range(groups):
            for s in range(lanes):
                better = received[i, s] > most[s]
                most[s] = received[i, s] if better else most[s]
                reference[s] = h[i, s] if better else reference[s]
        pull[:] = 0.0
        for i in range(groups):
            for s in range(lanes):
                h[i, s] -= reference[s]
                pull[s] += received[i, s] * h[i, s]
        for s in range(lanes):
            label = y[first + s] if s < present else 0.0
            margin = label * (pull[s] + groups * reference[s])
            decay = math.exp(-abs(margin))
            loss += (math.log1p(decay) + max(-margin, 0.0)) * abs(label)
            pull[s] = -label * (decay if margin > 0 else 1.0) / (1.0 + decay) * weight
        for j in range(groups):
            mean[:] = 0.0
            for i in range(groups):
                for s in range(lanes):
                    mean[s] += S[i, j, s] * h[i, s]
            right[j] = 0.0
            for i in range(groups):
                for s in range(lanes):
                    S[i, j, s] *= pull[s] * (h[i, s] - mean[s])
                for s in range(lanes):
                    pair[i, j, s] += S[i, j, s]
                for k in range(d):
                    for s in range(lanes):
                        right[j, k, s] += x[i, k, s] * S[i, j, s]
                    for s in range(lanes):
                        key[i, k, s] += x[j, k, s] * S[i, j, s]
            for k in range(d):
                for m in range(d):
                    for s in range(lanes):
                        content[k, m, s] += right[j, k, s] * x[j, m, s]
                for s in range(lanes):
                    query[j, k, s] += right[j, k, s]
        for i in range(groups):
            for s in range(lanes):
                position[i, s] += pull[s] * received[i, s]
            for k in range(d):
                for s in range(lanes):
                    value[k, s] += pull[s] * received[i, s] * x[i, k, s]
    gradient.content[:], gradient.query[:], gradient.key[:] = (
        content.sum(axis=2),
        query.sum(axis=2).T,
        key.sum(axis=2).T,
    )
    gradient.pair[:], gradient.value[:], gradient.position[:] = (
        pair.sum(axis=2),
        value.sum(axis=1),
        position.sum(axis=1),
    )
    return float(loss * weight)
