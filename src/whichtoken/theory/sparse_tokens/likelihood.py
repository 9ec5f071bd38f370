"""Elementary symmetric polynomials of many terms, for the likelihood ratio of a signal at unknown positions."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from whichtoken.theory.sparse_tokens.feature_law import highest_token

TILT_STEPS = 200
NEGLIGIBLE = 36.0  # exponent of what is left out
WINDOW = 12.0  # standard deviations, and ...
SPARE = 24  # ... as many successes more, over which two numbers of successes must not be confused


@njit(cache=True, nogil=True)
def log_symmetric(logs, counts, order):  # type: ignore[no-untyped-def]
    """Logarithms of the elementary symmetric polynomials of orders `order - 1` and `order` of exp(logs), (points, 2).

    `logs` has shape (points, k); each entry stands for as many equal terms as `counts` (points, k) or (1, k) says. With
    p = expit(logs - tilt), the polynomial is the chance that independent trials of probabilities p succeed `order` times,
    over exp(-order tilt) prod (1 - p). A tilt that makes this the expected number keeps the chance far from zero; it
    follows from the characteristic function, which has decayed after some two dozen nodes however many trials there are.
    """
    points = logs.shape[0]
    out = np.empty((points, 2))
    for i in range(points):
        count = counts[i % len(counts)]
        if order == 1:
            out[i, 0], out[i, 1] = 0.0, _log_sum(logs[i], count)
        else:
            out[i, 0], out[i, 1] = _two_orders(logs[i], count, order)
    return out


@njit(cache=True, nogil=True)
def _log_sum(logs, counts):  # type: ignore[no-untyped-def]
    peak = highest_token(logs, counts)
    total = 0.0
    for t in range(logs.size):
        if counts[t] > 0:
            total += counts[t] * math.exp(logs[t] - peak)
    return peak + math.log(total)


@njit(cache=True, nogil=True)
def _two_orders(logs, counts, order):  # type: ignore[no-untyped-def]
    if order == counts.sum():  # the product of all terms, and of all but one: no tilt makes that the expected number
        everything = (np.where(counts > 0, logs, 0.0) * counts).sum()
        return everything + _log_sum(-logs, counts), everything
    tilt = _tilt(logs, counts, order - 0.5)
    p, q = np.empty(logs.size), np.empty(logs.size)
    log_rest = variance = 0.0
    for t in range(logs.size):
        x = logs[t] - tilt
        p[t], q[t] = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))
        log_rest += counts[t] * (max(x, 0.0) + math.log1p(math.exp(-abs(x))))  # -log q
        variance += counts[t] * p[t] * q[t]
    nodes = int(WINDOW * math.sqrt(variance)) + SPARE
    lower = upper = 1.0
    for k in range(1, nodes // 2 + 1):
        angle = 2 * math.pi * k / nodes
        if variance * (1 - math.cos(angle)) > NEGLIGIBLE:
            break
        log_size, phase = _characteristic(p, q, counts, math.cos(angle), math.sin(angle))
        twice = (1.0 if 2 * k == nodes else 2.0) * math.exp(log_size)
        lower += twice * math.cos(phase - (order - 1) * angle)
        upper += twice * math.cos(phase - order * angle)
    return (
        log_rest + (order - 1) * tilt + math.log(max(lower / nodes, 1e-300)),
        log_rest + order * tilt + math.log(max(upper / nodes, 1e-300)),
    )


@njit(cache=True, nogil=True)
def _characteristic(p, q, counts, cosine, sine):  # type: ignore[no-untyped-def]
    """Logarithm of the size, and phase, of the product of q + p exp(i angle) over all trials."""
    log_size = phase = 0.0
    real, imaginary = 1.0, 0.0
    for t in range(p.size):
        n, a, b = counts[t], q[t] + p[t] * cosine, p[t] * sine
        if n == 1:
            real, imaginary = real * a - imaginary * b, real * b + imaginary * a
            if abs(real) + abs(imaginary) < 1e-100:
                real, imaginary, log_size = real * 1e100, imaginary * 1e100, log_size - 100 * math.log(10.0)
        elif n > 0:
            log_size += 0.5 * n * math.log1p(-2 * p[t] * q[t] * (1 - cosine))
            phase += n * math.atan2(b, a)
    return log_size + math.log(max(math.hypot(real, imaginary), 1e-300)), phase + math.atan2(imaginary, real)


@njit(cache=True, nogil=True)
def _tilt(logs, counts, expected):  # type: ignore[no-untyped-def]
    """Shift at which the expected number of successes is this one, to a tenth of a token: Newton, or halving."""
    odds = math.log(expected / (counts.sum() - expected))
    low, high = -highest_token(-logs, counts) - odds, highest_token(logs, counts) - odds
    tilt = (low + high) / 2
    for _ in range(TILT_STEPS):
        mean = variance = 0.0
        for t in range(logs.size):
            if counts[t] > 0:
                p = 1 / (1 + math.exp(tilt - logs[t]))
                mean += counts[t] * p
                variance += counts[t] * p * (1 - p)
        if abs(mean - expected) < 0.1:
            break
        if mean > expected:
            low = tilt
        else:
            high = tilt
        tilt += (mean - expected) / max(variance, 1e-300)
        if not low < tilt < high:
            tilt = (low + high) / 2
    return tilt
