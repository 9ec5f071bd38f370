r"""Half-normal moments of the logistic function, the only integrals that the population map needs.

The margin of a sample is m = A H + B n with H half-normal and n normal. As |m| has the law of R H, R^2 = A^2 + B^2, the
expectation of an even function of m depends on R alone, and Stein's identity in H and in n reduces the other moments to
such functions. With g = sigmoid(-m):

    E softplus(-m) =  loss(R) + (R - A)/sqrt(2 pi)
    E[g H]         =  pull(R) + (R - A) slope(R)
    E[g n]         = -B slope(R)
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

PANELS = 8
NODES = 16  # sixteen points on panels of width at most 5/R: the poles of the sigmoid at i pi/R cost 1e-15
COARSE_NODES = 12
NORMAL_REACH = 9.0  # the normal density is 1e-18 there
LOGISTIC_REACH = 40.0  # exp(-40) = 4e-18

Rule = tuple[NDArray[np.float64], NDArray[np.float64]]


def quadrature_rule(nodes: int) -> Rule:
    """Gauss-Legendre points and weights on `PANELS` equal panels of [0, 1], each of shape (PANELS * nodes,)."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    panel_starts = np.arange(PANELS)[:, None]
    return ((panel_starts + (points + 1) / 2) / PANELS).ravel(), np.tile(weights / (2 * PANELS), PANELS)


@njit(cache=True, nogil=True)
def half_normal_moments(
    scale: float, points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Loss E softplus(-R H), pull E[H sigmoid(-R H)] and slope E[sigmoid'(R H)] for R = scale >= 0.

    All integrands are positive, so nothing cancels however large R is.
    """
    reach = NORMAL_REACH if scale * NORMAL_REACH <= LOGISTIC_REACH else LOGISTIC_REACH / scale
    loss = pull = slope = 0.0
    for k in range(points.size):
        h = reach * points[k]
        mass = weights[k] * math.exp(-0.5 * h * h)
        decay = math.exp(-scale * h)
        sigmoid = decay / (1.0 + decay)
        loss += mass * math.log1p(decay)
        pull += mass * h * sigmoid
        slope += mass * sigmoid / (1.0 + decay)
    normaliser = reach * math.sqrt(2.0 / math.pi)
    return normaliser * loss, normaliser * pull, normaliser * slope
