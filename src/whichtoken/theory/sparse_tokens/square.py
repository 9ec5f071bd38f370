"""The saddle point of `saddle.py` in closed form for the square loss: one scalar equation, then linear algebra.

With D = 1 / (1 + rho V) and J = (f1, f2, 1), all expectations over the Gaussian noise are explicit, so the result
carries the error of the feature law alone (Barnfield, Cui, Lu, arXiv 2509.25153, Theorem 4 for the square loss).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw
from whichtoken.theory.sparse_tokens.saddle import SaddlePoint


def square_saddle_point(law: FeatureLaw, samples_per_dim: float, ridge: float) -> SaddlePoint:
    """Overlaps of the ridge-regression readout; `ridge` may be 0 above one sample per dimension."""
    alpha, rho, w, y = samples_per_dim, law.spread, law.weight, law.label

    def excess(log_v: float) -> float:
        v = math.exp(log_v)
        return float(v * alpha * (ridge + w @ (rho / (1 + v * rho))) - 1)

    log_v, search = brentq(excess, -60.0, 60.0, xtol=1e-14, full_output=True)
    v = math.exp(log_v)
    damp = 1 / (1 + v * rho)  # (nodes,)
    curvature = w @ (rho * damp)
    columns = np.stack([law.query_mean, law.signal_mean, np.ones_like(rho)])  # (3, nodes)
    gram = (columns * (w * damp)) @ columns.T
    gram += np.diag([ridge + law.query_variance * (w @ damp), ridge + curvature, 0.0])
    # least squares, because without a query direction or ridge the first row is zero and the overlap is 0
    om, m, b = np.linalg.lstsq(gram, columns @ (w * damp * y))[0].tolist()
    misfit = (np.array([om, m, b]) @ columns - y) ** 2 + law.query_variance * om**2 + rho * m**2
    gain = alpha * v**2
    rest = gain * (w @ (rho * damp**2 * misfit)) / (1 - gain * (w @ (rho * damp * rho * damp)))
    train_loss = w @ (damp**2 * (misfit + rho * rest)) / 2
    return SaddlePoint(om, m, b, math.sqrt(rest), v, float(train_loss), abs(excess(log_v)), search.iterations)
