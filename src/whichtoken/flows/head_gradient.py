"""Compiled gradient of attention heads that share a decoder, for two classes or more, exact however far they saturate.

The output of sequence i is the mean over heads h of sum_t s_hit x_it, read by one decoder (label margin m_i, any decreasing
loss) or by one per class (cross-entropy). What is said in `attention_kernels` holds here too: everything is taken relative to
the winning token, and the largest pull is divided out before any is exponentiated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from whichtoken.attention.sequence import NO_NULL, fall_short, weigh
from whichtoken.flows.attention_kernels import look, pull
from whichtoken.flows.mirror_steps import LOG_HUGE


@njit(cache=True, nogil=True)
def head_gradient(
    tokens: Any,  # (n, T, d)
    queries: Any,  # (n, d)
    class_scores: Any,  # (n, T, C): y_i v.x_it if C = 1, else v_c.x_it
    labels: Any,  # (n,) int, read if C > 1
    weights: Any,  # (h, d, d), W divided by exp(log_size)
    log_size: float,
    log_slope: Any,  # of the loss, called if C = 1
    selected: Any,  # (h, n) out: winning tokens
    descent: Any,  # (h d, d) out: -dL/dW, divided by the exponential of what is returned
) -> float:
    """Write the descent direction of every head and return the logarithm of its factor, -inf where it vanishes."""
    sequences, length, dim = tokens.shape
    heads = len(weights)
    size = math.exp(min(log_size, LOG_HUGE))
    keys = np.empty((heads, sequences, dim))
    for h in range(heads):
        keys[h] = np.dot(queries, weights[h].T)
    log_pulls, signs = np.empty((heads, sequences, length)), np.empty((heads, sequences, length))
    shares, totals = np.empty((heads, length)), np.empty(heads)
    for i in range(sequences):
        for h in range(heads):
            selected[h, i], totals[h] = look(tokens[i], keys[h, i], size, log_pulls[h, i], shares[h])
        gamma, slope = _token_scores(class_scores[i], labels[i], selected[:, i], shares, totals, log_slope)
        for h in range(heads):
            winner = selected[h, i]
            highest, shortfall = fall_short(gamma, None, shares[h], winner, 0.0, totals[h])
            factor = slope - math.log(totals[h])
            pull(tokens[i], gamma, winner, highest, shortfall, factor, log_pulls[h, i], signs[h, i])
    largest = log_pulls.max()
    if largest == -math.inf:
        descent[:] = 0.0
        return -math.inf
    moves = np.zeros((sequences, dim))
    for h in range(heads):
        moves[:] = 0.0
        for i in range(sequences):
            for t in range(length):
                factor = signs[h, i, t] * math.exp(log_pulls[h, i, t] - largest)
                for j in range(dim):
                    moves[i, j] += factor * (tokens[i, t, j] - tokens[i, selected[h, i], j])
        descent[h * dim : (h + 1) * dim] = np.dot(moves.T, queries)
    return float(largest - math.log(sequences * heads))


@njit(cache=True, nogil=True)
def _token_scores(
    class_scores: Any, label: int, winners: Any, shares: Any, totals: Any, log_slope: Any
) -> tuple[Any, float]:
    """What each token adds to -loss per unit of output: gamma (T,), and the logarithm of the factor before it."""
    length, classes = class_scores.shape
    heads = len(winners)
    outputs = np.zeros(classes)
    for c in range(classes):
        for h in range(heads):
            highest, shortfall = fall_short(class_scores[:, c], None, shares[h], winners[h], 0.0, totals[h])
            outputs[c] += (highest - shortfall) / heads
    if classes == 1:
        return class_scores[:, 0].copy(), log_slope(outputs[0])
    probabilities = np.empty(classes)
    _, _, total = weigh(outputs, None, None, NO_NULL, probabilities)
    gamma = np.zeros(length)
    for t in range(length):
        for c in range(classes):  # v_y - sum_c p_c v_c: differences to the own class, so that p near 1 loses nothing
            gamma[t] += probabilities[c] / total * (class_scores[t, label] - class_scores[t, c])
    return gamma, 0.0
