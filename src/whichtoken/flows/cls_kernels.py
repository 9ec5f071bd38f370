"""Slope and curvature of the loss in the scores of the tokens, in the log domain and compiled."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.attention.losses import log_logistic, log_logistic_slope
from whichtoken.attention.pooling_arrays import NOBODY
from whichtoken.attention.sequence import NO_NULL, fall_short, lead, weigh_in_logs

Vector = NDArray[np.float64]


@njit(cache=True, nogil=True)
def token_pull(
    scores: Vector,
    values: Vector,
    indptr: NDArray[np.int32],
    tokens: NDArray[np.int32],
    log_counts: Vector,
    signs: Vector,
) -> tuple[Vector, float, float]:
    """dL / da for every token in the log domain: exp(second) times first, (|S|,); and the log of the loss.

    A sequence whose winner is k contributes r q_s (g_s - f) to the others and minus their sum to k. Nothing cancels however
    close q_k is to 1, because f itself comes from differences to g_k.
    """
    n = len(signs)
    log_weights, shares = np.empty(len(tokens)), np.empty(len(tokens))
    highest, shortfalls, log_residuals, log_losses = np.empty((4, n))
    winners, second = np.full(n, NOBODY), np.full(n, -np.inf)  # largest log q beside the winner's
    for x in range(n):
        start, stop = indptr[x], indptr[x + 1]
        part, logs = tokens[start:stop], log_weights[start:stop]
        top, null, total = weigh_in_logs(scores, part, log_counts[start:stop], NO_NULL, logs, shares)
        highest[x], shortfalls[x] = fall_short(values, part, shares, top, null, total)
        winners[x] = top
        for e in range(stop - start):
            if e != top:
                second[x] = max(second[x], logs[e])
        margin = signs[x] * (highest[x] - shortfalls[x])
        log_residuals[x], log_losses[x] = log_logistic_slope(margin), log_logistic(margin)
    log_scale = (log_residuals + second).max()
    if log_scale == -np.inf:  # no sequence has two tokens
        log_scale = 0.0
    pull = np.zeros(len(scores))
    for x in range(n):
        start, total = indptr[x], 0.0
        for e in range(indptr[x + 1] - start):
            if e != winners[x]:
                token = tokens[start + e]
                weight = math.exp(log_residuals[x] + log_weights[start + e] - log_scale)
                part_pull = -signs[x] / n * weight * lead(values[token], highest[x], shortfalls[x])
                pull[token] += part_pull
                total += part_pull
        if winners[x] != NOBODY:
            pull[tokens[start + winners[x]]] -= total
    peak = log_losses.max()
    return pull, log_scale, peak + math.log(np.exp(log_losses - peak).mean())


@njit(cache=True, nogil=True)
def token_curvature(
    scores: Vector,
    values: Vector,
    indptr: NDArray[np.int32],
    tokens: NDArray[np.int32],
    log_counts: Vector,
    signs: Vector,
    log_scale: float,
) -> Vector:
    """d^2 L / da da of every two tokens over exp(log_scale), (|S|, |S|).

    With w the slopes of one sequence's loss, and h = g - f, its part is diag(w) - w q^T - q w^T - y sigma(y f) w (q h)^T. Every
    term carries a slope, so nothing over- or underflows at the scale that `token_pull` returns.
    """
    n, largest = len(signs), 0
    for x in range(n):
        largest = max(largest, indptr[x + 1] - indptr[x])
    logs, shares, slopes, weighted, weights = np.empty((5, largest))
    curvature = np.zeros((len(scores), len(scores)))
    for x in range(n):
        start, size = indptr[x], indptr[x + 1] - indptr[x]
        part = tokens[start : start + size]
        top, null, total = weigh_in_logs(scores, part, log_counts[start : start + size], NO_NULL, logs, shares)
        if top == NOBODY:
            continue
        highest, shortfall = fall_short(values, part, shares, top, null, total)
        margin = signs[x] * (highest - shortfall)
        log_residual, confidence = log_logistic_slope(margin), math.exp(log_logistic_slope(-margin))
        others = 0.0
        for e in range(size):
            weights[e] = math.exp(logs[e])
            ahead = lead(values[part[e]], highest, shortfall)
            weighted[e] = weights[e] * ahead
            if e != top:
                slopes[e] = -signs[x] / n * math.exp(log_residual + logs[e] - log_scale) * ahead
                others += slopes[e]
        weighted[top], slopes[top] = weights[top] * shortfall, -others
        for i in range(size):
            curvature[part[i], part[i]] += slopes[i]
            for j in range(size):
                curvature[part[i], part[j]] -= (
                    slopes[i] * weights[j] + weights[i] * slopes[j] + signs[x] * confidence * slopes[i] * weighted[j]
                )
    return curvature
