"""The compiled loop of `score_descent`; importing it loads numba, which a saved model does not need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.attention.kernels import NO_NULL, lead, shortfall_of, shortfalls_of, value_of, weigh
from whichtoken.attention.losses import logistic_slope

Array = NDArray[np.float64]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-10


# no `ninf`: minus infinity stands for the null token that is not there
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "arcp", "nsz"})
def run_epoch(
    indptr: Any, indices: Any, data: Any, targets: Array, weights: Array, order: Any, batch: int,
    a: Array, g: Array, bias: Array, ma: Array, mg: Array, mb: Array, t: int,
    lr_a: float, lr_g: float, ridge_a: float, ridge_g: float,
) -> int:  # fmt: skip
    _, queries, outputs = g.shape
    da, dg, db = np.zeros_like(a), np.zeros_like(g), np.zeros(outputs)
    best, shortfall = np.zeros((2, queries, outputs))  # value of the winning token, and what the output lacks of it
    out, residual = np.zeros(outputs), np.zeros(outputs)
    longest = 0
    for i in range(len(order)):
        longest = max(longest, indptr[i + 1] - indptr[i])
    share = np.zeros((queries, longest))  # attention of the tokens of one document
    for start in range(0, len(order), batch):
        stop = min(len(order), start + batch)
        da[:], dg[:], db[:] = 0.0, 0.0, 0.0
        mass = 0.0
        for place in range(start, stop):
            mass += weights[order[place]]
        if mass <= 0.0:
            continue
        for place in range(start, stop):
            i = order[place]
            first, size = indptr[i], indptr[i + 1] - indptr[i]
            tokens, counts = indices[first : first + size], data[first : first + size]
            out[:] = bias
            for h in range(queries if size > 0 else 0):
                winner, null, total = weigh(a[:, h], tokens, counts, NO_NULL, share[h])
                for j in range(size):
                    share[h, j] /= total
                if outputs == 1:
                    best[h, 0], shortfall[h, 0] = shortfall_of(g[:, h, 0], tokens, share[h], winner, null, 1.0)
                else:
                    for k in range(outputs):
                        best[h, k] = value_of(g[:, h], tokens, winner, k)
                    shortfalls_of(g[:, h], tokens, share[h], winner, null, 1.0, shortfall[h])
                for k in range(outputs):
                    out[k] += best[h, k] - shortfall[h, k]
            if outputs == 1:
                target = targets[i, 0]
                residual[0] = target * logistic_slope(out[0]) - (1.0 - target) * logistic_slope(-out[0])
            else:
                peak, total = out.max(), 0.0
                for k in range(outputs):
                    residual[k] = np.exp(out[k] - peak)
                    total += residual[k]
                for k in range(outputs):
                    residual[k] = residual[k] / total - targets[i, k]
            for k in range(outputs):
                residual[k] *= weights[i] / mass
                db[k] += residual[k]
            for j in range(size):
                s = tokens[j]
                for h in range(queries):
                    pull = 0.0
                    for k in range(outputs):
                        dg[s, h, k] += residual[k] * share[h, j]
                        pull += residual[k] * lead(g[s, h, k], best[h, k], shortfall[h, k])
                    da[s, h] += share[h, j] * pull
        t += 1
        root = np.sqrt(1.0 - BETA2**t)
        rate = root / (1.0 - BETA1**t)
        _adam(a.reshape(-1), da.reshape(-1), ma[0].reshape(-1), ma[1].reshape(-1), lr_a * rate, ridge_a, EPS * root)
        _adam(g.reshape(-1), dg.reshape(-1), mg[0].reshape(-1), mg[1].reshape(-1), lr_g * rate, ridge_g, EPS * root)
        _adam(bias, db, mb[0], mb[1], lr_g * rate, 0.0, EPS * root)
    return t


@njit(nogil=True, fastmath=True)
def _adam(x: Array, gradient: Array, m: Array, v: Array, lr: float, ridge: float, eps: float) -> None:
    for i in range(len(x)):
        slope = gradient[i] + ridge * x[i]
        m[i] = BETA1 * m[i] + (1.0 - BETA1) * slope
        v[i] = BETA2 * v[i] + (1.0 - BETA2) * slope * slope
        x[i] -= lr * m[i] / (np.sqrt(v[i]) + eps)
