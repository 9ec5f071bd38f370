"""Mean Moreau envelope of a loss over a feature law, with all first and second derivatives, in one pass.

For E[M(r; rho V)] as in `saddle.py`, in the variables (om, m, b, sig, V). The logistic envelope is integrated over the
Gaussian nodes of the law. That of the hinge bends within a width rho V, which can be far narrower than the nodes lie
apart; its Gaussian integrals are explicit, so the nodes' own Gaussians are not used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw

Array = NDArray[np.float64]

NARROW = 0.5  # width of the bend in standard deviations below which differences of Gaussian integrals lose digits
NODES, WEIGHTS = (0.5 * np.polynomial.legendre.leggauss(6)[0] + 0.5, 0.5 * np.polynomial.legendre.leggauss(6)[1])
ROOT_TWO, ROOT_TWO_PI = math.sqrt(2.0), math.sqrt(2 * math.pi)


def envelope(
    law: FeatureLaw, loss: str, om: float, m: float, b: float, sig: float, v: float, prox: Array
) -> tuple[Array, Array, float, float]:
    """Gradient (5,) and Hessian (5, 5) of the mean envelope, E|l1| and E[loss]; `prox` (nodes,) is kept between calls."""
    nodes = (law.label, law.weight, law.query_mean, law.signal_mean, law.spread)
    if loss == "hinge":
        found: Any = _hinge_sums(*nodes, law.query_variance, om, m, b, sig, v)
    else:
        found = _logistic_sums(*nodes, law.gauss, law.query_variance, om, m, b, sig, v, prox)
    gradient, hessian, size, mean_loss = found
    return gradient, hessian, size, mean_loss


@njit(cache=True, nogil=True)
def logistic_prox(t: float, width: float, start: float) -> float:
    """Solve u - width * sigmoid(-u) = t by Newton's method, kept inside the bracket [t, t + width]."""
    low, high, u = t, t + width, start
    if not (low <= u <= high):  # also when nothing is known yet: start is nan
        u = t if t > 0 else min(high, max(low, math.log1p(width)))
    for _ in range(100):
        slope = 1 / (1 + math.exp(min(u, 700.0)))
        excess = u - width * slope - t
        if excess > 0:
            high = u
        else:
            low = u
        new = u - excess / (1 + width * slope * (1 - slope))
        if not (low <= new <= high):
            new = 0.5 * (low + high)
        if abs(new - u) <= 1e-9 * (1 + abs(u)):  # convergence is quadratic: the error of `new` is far smaller
            return new
        u = new
    return u


@njit(cache=True, nogil=True)
def _logistic_sums(label, weight, query_mean, signal_mean, spread, gauss, query_variance, om, m, b, sig, v, prox):  # type: ignore[no-untyped-def]
    """All sums in one pass over the nodes; updates `prox`, from which the next call starts."""
    gradient, hessian, size, loss = np.zeros(5), np.zeros((5, 5)), 0.0, 0.0
    dr, dnoise = np.empty(4), np.zeros(4)  # derivatives of r and of S by (om, m, b, sig)
    for i in range(label.size):
        rho, g = spread[i], gauss[i]
        noise = math.sqrt(query_variance * om * om + rho * (m * m + sig * sig))
        r = om * query_mean[i] + m * signal_mean[i] + b + noise * g
        prox[i] = logistic_prox(label[i] * r, rho * v, prox[i])  # in the variable y z
        slope = -1 / (1 + math.exp(min(prox[i], 700.0)))
        bend = -slope * (1 + slope)
        bend /= 1 + rho * v * bend
        l1, wl, wd = label[i] * slope, weight[i] * label[i] * slope, weight[i] * bend
        dnoise[0], dnoise[1], dnoise[3] = query_variance * om / noise, rho * m / noise, rho * sig / noise
        dr[0], dr[1], dr[2], dr[3] = query_mean[i] + g * dnoise[0], signal_mean[i] + g * dnoise[1], 1.0, g * dnoise[3]
        pull = wl * g / noise  # S'' = (variances on the diagonal - S' S'^T) / S
        for p in range(4):
            gradient[p] += wl * dr[p]
            hessian[4, p] -= wd * rho * l1 * dr[p]
            for q in range(p + 1):
                hessian[p, q] += wd * dr[p] * dr[q] - pull * dnoise[p] * dnoise[q]
        hessian[0, 0] += pull * query_variance
        hessian[1, 1] += pull * rho
        hessian[3, 3] += pull * rho
        hessian[4, 4] += wd * (rho * l1) ** 2
        gradient[4] -= 0.5 * wl * l1 * rho
        size += abs(wl)
        loss += weight[i] * (math.log1p(math.exp(-abs(prox[i]))) + max(-prox[i], 0.0))
    for p in range(5):
        for q in range(p):
            hessian[q, p] = hessian[p, q]
    return gradient, hessian, size, loss


@njit(cache=True, nogil=True)
def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / ROOT_TWO_PI


@njit(cache=True, nogil=True)
def _below(x: float) -> float:
    return 0.5 * math.erfc(-x / ROOT_TWO)


@njit(cache=True, nogil=True)
def _bend_moments(high: float, width: float) -> tuple[float, float, float, float, float, float]:
    """Integrals over g from `high - width` to `high` of density * g^k * x^j / width, with x = (g - high) / width.

    In the order (k, j) = (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2).
    """
    m00 = m10 = m20 = m01 = m11 = m02 = 0.0
    if width < NARROW:
        for k in range(NODES.size):
            g, x = high - width * NODES[k], -NODES[k]
            d = WEIGHTS[k] * _density(g)
            m00 += d
            m10 += d * g
            m20 += d * g * g
            m01 += d * x
            m11 += d * g * x
            m02 += d * x * x
        return m00, m10, m20, m01, m11, m02
    low = high - width
    # the smaller tail keeps its digits
    inside = _below(high) - _below(low) if low < 0 else _below(-low) - _below(-high)
    dl, dh = _density(low), _density(high)
    first, second = dl - dh, inside
    if dl > 0:
        second += low * dl
    if dh > 0:
        second -= high * dh
    m01, m11 = (first - high * inside) / width, (second - high * first) / width
    m02 = (second - high * first - high * (first - high * inside)) / (width * width)
    return inside / width, first / width, second / width, m01 / width, m11 / width, m02 / width


@njit(cache=True, nogil=True)
def _hinge_sums(label, weight, query_mean, signal_mean, spread, query_variance, om, m, b, sig, v):  # type: ignore[no-untyped-def]
    """With t = y r = mu + S g, the slope is -1 below t = 1 - rho V, rises evenly from there to t = 1, and is 0 above."""
    gradient, hessian, size, loss = np.zeros(5), np.zeros((5, 5)), 0.0, 0.0
    dmean, dnoise = np.zeros(4), np.zeros(4)
    for i in range(label.size):
        rho, y, w = spread[i], label[i], weight[i]
        noise = math.sqrt(query_variance * om * om + rho * (m * m + sig * sig))
        high = (1 - y * (om * query_mean[i] + m * signal_mean[i] + b)) / noise
        width = rho * v / noise
        low = high - width
        b00, b10, b20, b01, b11, b02 = _bend_moments(high, width)
        under = _below(low)
        slope, slope2 = -under + width * b01, under + width * b02
        loss += w * noise * max(low * under + _density(low), 0.0)
        size -= w * slope
        dmean[0], dmean[1], dmean[2] = y * query_mean[i], y * signal_mean[i], y
        dnoise[0], dnoise[1], dnoise[3] = query_variance * om / noise, rho * m / noise, rho * sig / noise
        for p in range(4):
            gradient[p] += w * (slope * dmean[p] + b00 * dnoise[p])
            hessian[4, p] -= w * rho / noise * (b01 * dmean[p] + b11 * dnoise[p])
            for q in range(p + 1):
                hessian[p, q] += (
                    w
                    / noise
                    * (
                        b00 * dmean[p] * dmean[q]
                        + b10 * (dmean[p] * dnoise[q] + dnoise[p] * dmean[q])
                        + (b20 - b00) * dnoise[p] * dnoise[q]
                    )
                )
        hessian[0, 0] += w * b00 / noise * query_variance
        hessian[1, 1] += w * b00 / noise * rho
        hessian[3, 3] += w * b00 / noise * rho
        hessian[4, 4] += w * rho * rho / noise * b02
        gradient[4] -= 0.5 * w * rho * slope2
    for p in range(5):
        for q in range(p):
            hessian[q, p] = hessian[p, q]
    return gradient, hessian, size, loss
