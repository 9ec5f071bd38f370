"""Compiled descent of one attention head, exact however far the softmax saturates.

Once one token wins, the gradient shrinks like exp(-|W|) while W grows without bound. Neither is ever formed: see
`mirror_steps` for how both are carried.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from whichtoken.attention.kernels import NO_NULL, VANISHED, lead, shortfall_of, weigh
from whichtoken.flows.mirror_steps import FLOW, LOG_HUGE, PLAIN, advance, later, log_length, primal


@njit(cache=True, nogil=True)
def descend(
    tokens: Any, queries: Any, labels: Any, dual: Any, decoder_dual: Any, q: float, lr: float, lr_decoder: float, steps: int,
    rule: int, log_slope: Any, recorded: Any, kept: Any, kept_logs: Any,
) -> Any:  # fmt: skip
    """Descend in W and v at once; return the log-units, the log-time, the winning tokens and when they last changed.

    Parameters
    ----------
    tokens, queries, labels : (n, T, d), (n, d) and (n,)
    dual, decoder_dual : (d d,) and (d,)
        Dual variables of W and v, updated in place.
    lr_decoder
        0 keeps v fixed.
    recorded : (r,)
        Step numbers, ascending.
    kept : (r, d d + d)
        Written: dual variables of W, then of v.
    kept_logs : (r, 3)
        Written: log-units of W and v, log-time.
    """
    sequences, length, dim = tokens.shape
    selected = np.zeros(sequences, dtype=np.int64)
    previous = np.zeros_like(selected)
    attention = np.empty((sequences, length))
    log_slopes = np.empty(sequences)
    weights, decoder, gamma = np.empty_like(dual), np.empty_like(decoder_dual), np.empty((sequences, length))
    log_unit, decoder_log_unit, log_time, decoder_log_size = 0.0, 0.0, -math.inf, 0.0
    last_change, row = 0, 0
    for step in range(steps + 1):
        if row < recorded.size and recorded[row] == step:
            kept[row, : dual.size], kept[row, dual.size :] = dual, decoder_dual
            kept_logs[row, 0], kept_logs[row, 1], kept_logs[row, 2] = log_unit, decoder_log_unit, log_time
            row += 1
        log_size = primal(dual, log_unit, q, weights)
        if step == 0 or lr_decoder > 0.0:
            decoder_log_size = primal(decoder_dual, decoder_log_unit, q, decoder)
            _token_scores(tokens, labels, decoder, gamma)
        square = weights.reshape((dim, dim))
        descent, log_scale = weight_gradient(
            tokens, queries, gamma, decoder_log_size, square, log_size, log_slope, selected, attention, log_slopes
        )
        if step > 0 and not np.array_equal(selected, previous):
            last_change = step
        previous[:] = selected
        if step == steps:
            break
        move = log_length(rule, lr, dual, log_unit, descent, log_scale, q)
        tick = math.log(lr) if rule == PLAIN else move - log_scale  # also while the gradient of W is still zero
        if lr_decoder > 0.0:
            decoder_descent, decoder_log_scale = decoder_gradient(tokens, labels, attention, log_slopes)
            decoder_move = log_length(
                rule, lr_decoder, decoder_dual, decoder_log_unit, decoder_descent, decoder_log_scale, q
            )
            if rule == FLOW:  # one clock for both: the block that is the first to move by its share sets it
                speed = math.log(lr_decoder / lr)
                decoder_tick = decoder_move - decoder_log_scale - speed
                tick = min(tick, decoder_tick) if tick > -math.inf else decoder_tick
                move, decoder_move = tick + log_scale, tick + speed + decoder_log_scale
            decoder_log_unit = advance(decoder_dual, decoder_log_unit, decoder_descent, decoder_move)
        log_unit = advance(dual, log_unit, descent, move)
        log_time = later(log_time, tick)
    return log_unit, decoder_log_unit, log_time, selected, last_change


@njit(cache=True, nogil=True, error_model="numpy")
def weight_gradient(
    tokens: Any, queries: Any, gamma: Any, log_gamma: float, weights: Any, log_size: float, log_slope: Any, selected: Any,
    attention: Any, log_slopes: Any,
) -> Any:  # fmt: skip
    """-dL/dW as a vector (d d,) and the log of its factor.

    With the winner k of sequence i, dL/dW = mean_i l'(m_i) sum_t s_it (gamma_it - m_i) (x_it - x_ik) z_i^T, because
    s_it (gamma_it - m_i) sums to zero over t. The winner's own term, a difference of nearly equal numbers, drops out,
    and the largest of the other weights can be divided out before any is exponentiated.

    Parameters
    ----------
    tokens, queries : (n, T, d) and (n, d)
    gamma : (n, T)
        Token scores, divided by exp(log_gamma).
    weights : (d, d)
        W, divided by exp(log_size).
    selected, attention, log_slopes : (n,), (n, T) and (n,)
        Written: winning tokens, attention, log |l'(m_i)|.
    """
    sequences, length, dim = tokens.shape
    size, gamma_size = math.exp(min(log_size, LOG_HUGE)), math.exp(min(log_gamma, LOG_HUGE))
    keys = np.dot(queries, weights.T)  # (n, d)
    log_pulls = np.empty((sequences, length))  # log |l'(m_i)| s_it |gamma_it - m_i|, -inf for the winner and its copies
    signs = np.empty((sequences, length))  # of gamma_it - m_i
    for i in range(sequences):
        selected[i], log_slopes[i] = _attend(
            tokens[i], keys[i], gamma[i], size, gamma_size, log_slope, log_pulls[i], signs[i], attention[i]
        )
    largest = log_pulls.max()
    if largest == -math.inf:
        return np.zeros(dim * dim), 0.0
    moves = np.zeros((sequences, dim))
    for i in range(sequences):
        winner = selected[i]
        for t in range(length):
            log_pull = log_pulls[i, t] - largest
            if log_pull > VANISHED:  # few are, once tokens have won
                factor = signs[i, t] * math.exp(log_pull)
                for j in range(dim):
                    moves[i, j] += factor * (tokens[i, t, j] - tokens[i, winner, j])
    return np.dot(moves.T, queries).ravel(), largest + log_gamma - math.log(sequences)


@njit(cache=True, nogil=True)
def decoder_gradient(tokens: Any, labels: Any, attention: Any, log_slopes: Any) -> Any:
    """-dL/dv = mean_i |l'(m_i)| y_i sum_t s_it x_it as a vector (d,) and the log of its factor."""
    sequences, length, dim = tokens.shape
    largest = log_slopes.max()
    descent = np.zeros(dim)
    for i in range(sequences):
        factor = labels[i] * math.exp(log_slopes[i] - largest)
        for t in range(length):
            for j in range(dim):
                descent[j] += factor * attention[i, t] * tokens[i, t, j]
    return descent, largest - math.log(sequences)


@njit(cache=True, nogil=True)
def _token_scores(tokens: Any, labels: Any, decoder: Any, gamma: Any) -> None:
    sequences, length, dim = tokens.shape
    for i in range(sequences):
        for t in range(length):
            score = 0.0
            for j in range(dim):
                score += tokens[i, t, j] * decoder[j]
            gamma[i, t] = labels[i] * score


@njit(cache=True, nogil=True, error_model="numpy")
def _attend(
    tokens: Any, key: Any, gamma: Any, size: float, gamma_size: float, log_slope: Any, log_pulls: Any, signs: Any,
    attention: Any,
) -> Any:  # fmt: skip
    """Write log of |l'(m)| s_t |gamma_t - m|, the sign of gamma_t - m and s_t; return winner and log |l'(m)|."""
    length, dim = tokens.shape
    for t in range(length):
        score = 0.0
        for j in range(dim):
            score += tokens[t, j] * key[j]
        log_pulls[t] = score
    best = log_pulls.max()
    for t in range(length):
        log_pulls[t] = size * (log_pulls[t] - best)  # differences first: the size may be as large as e^650
    winner, _, total = weigh(log_pulls, None, None, NO_NULL, attention)
    highest, shortfall = shortfall_of(gamma, None, attention, winner, 0.0, total)
    slope = log_slope(gamma_size * (highest - shortfall))
    attention /= total
    for t in range(length):
        advantage = lead(gamma[t], highest, shortfall)
        signs[t] = math.copysign(1.0, advantage)
        if advantage == 0.0 or _equal(tokens[t], tokens[winner]):
            log_pulls[t] = -math.inf
        else:
            log_pulls[t] += (slope - math.log(total)) + math.log(abs(advantage))
    return winner, slope


@njit(cache=True, nogil=True)
def _equal(one: Any, other: Any) -> bool:
    j = 0
    while j < one.size and one[j] == other[j]:
        j += 1
    return bool(j == one.size)
