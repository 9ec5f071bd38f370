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


@njit(cache=True, nogil=True)
def _accumulate(X: Array, y: Array, weight: float, blocks: Blocks, gradient: Blocks) -> float:
    """Sum of the losses times `weight`; its gradient is added to `gradient`."""
    batch, groups, d = X.shape
    S, S_transposed = np.empty((groups, groups)), np.empty((groups, groups))
    left, right = np.empty((groups, 2 * d)), np.empty((2 * d, groups))
    left[:, d:] = blocks.key.T
    columns, changes = right[d:], np.empty((d, groups))
    h, mean, highest, total, received = np.empty((5, groups))
    loss = 0.0
    for n in range(batch):
        for i in range(groups):
            h[i] = blocks.position[i]
            for k in range(d):
                left[i, k] = columns[k, i] = X[n, i, k]
                h[i] += X[n, i, k] * blocks.value[k]
        # scores x_i^T (W_11 x_j + W_12 p_j) + p_i^T W_21 x_j + p_i^T W_22 p_j, the first two as one product of width 2d
        right[:d] = blocks.query
        _add_product(blocks.content, columns, right[:d])
        S[:] = blocks.pair
        _add_product(left, right, S)
        _softmax(S, highest, total, received)
        # relative to the group attended most: its h_i - mean_j would be pure rounding once it wins
        reference = h[np.argmax(received)]
        h -= reference
        mean[:] = 0.0
        for i in range(groups):
            for j in range(groups):
                mean[j] += S[i, j] * h[i]
        margin = y[n] * (mean.sum() + groups * reference)
        decay = math.exp(-abs(margin))
        loss += math.log1p(decay) + max(-margin, 0.0)
        pull = -y[n] * (decay if margin > 0 else 1.0) / (1.0 + decay) * weight
        for i in range(groups):
            gradient.position[i] += pull * received[i]
            for k in range(d):
                gradient.value[k] += pull * received[i] * X[n, i, k]
            for j in range(groups):
                S[i, j] *= pull * (h[i] - mean[j])
                gradient.pair[i, j] += S[i, j]
            for j in range(groups):
                S_transposed[j, i] = S[i, j]
        changes[:] = 0.0
        _add_product(columns, S, changes)
        _add_product(columns, S_transposed, gradient.key)
        _add_product(changes, X[n], gradient.content)
        for k in range(d):
            for j in range(groups):
                gradient.query[k, j] += changes[k, j]
    return float(loss * weight)


@njit(cache=True, nogil=True)
def _softmax(S: Array, highest: Array, total: Array, received: Array) -> None:
    """Turn scores into weights over the keys of each query (column); `received` is what each key gets from all queries."""
    groups = S.shape[0]
    highest[:], total[:] = S[0], 0.0
    for i in range(groups):
        for j in range(groups):
            highest[j] = max(highest[j], S[i, j])
    for i in range(groups):
        for j in range(groups):
            S[i, j] = math.exp(S[i, j] - highest[j])
        for j in range(groups):
            total[j] += S[i, j]
    for j in range(groups):
        total[j] = 1.0 / total[j]
    for i in range(groups):
        for j in range(groups):
            S[i, j] *= total[j]
        weight = 0.0
        for j in range(groups):
            weight += S[i, j]
        received[i] = weight


@njit(cache=True, nogil=True)
def _add_product(left: Array, right: Array, out: Array) -> None:
    """Add left @ right to `out`, for small matrices; four rows of `right` at a time cut the traffic to `out`."""
    rows, inner = left.shape
    columns = right.shape[1]
    blocks = inner - inner % 4
    for i in range(rows):
        for k in range(0, blocks, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            for j in range(columns):
                out[i, j] += a * right[k, j] + b * right[k + 1, j] + c * right[k + 2, j] + d * right[k + 3, j]
        for k in range(blocks, inner):
            a = left[i, k]
            for j in range(columns):
                out[i, j] += a * right[k, j]
