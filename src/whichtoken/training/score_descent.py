"""The one-layer `<cls>` model in score space: one selection score and one value score per token, instead of embeddings.

With `<cls>` vector and value vector an orthonormal pair, embeddings of dimension two express every decision of the model, so
a_s = p.E_s and g_s = v.E_s are trained themselves. `queries` attention heads add up; `outputs` values per token and head make
several classes. The loss is the mean logistic (softmax) loss plus ridge terms on a and g.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.attention import pool_outputs
from whichtoken.attention.losses import logistic_slope
from whichtoken.attention.sequence import NO_NULL, fall_short, fall_short_rows, lead, value_of, weigh
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]

BETA1, BETA2, EPS = 0.9, 0.999, 1e-10
STEP_SELECTION, STEP_VALUE = 0.02, 0.2  # a is on a logarithmic scale, g on that of the output
LEAST_STEPS = 600  # fewer do not bring the value scores to their size, whatever the number of documents


@dataclass(frozen=True)
class Scores(Shown):
    """A trained model."""

    selection: Array  # a, (|S|, queries)
    values: Array  # g, (|S|, queries, outputs)
    bias: Array  # (outputs,)
    log_null: float = -np.inf  # score of a null token of value 0, which takes what the others do not get

    def outputs(self, amounts: sparse.csr_array) -> Array:
        """f + b of documents, (n, outputs); a document without tokens gets the bias."""
        total = np.tile(self.bias, (amounts.shape[0], 1))
        for h in range(self.selection.shape[1]):
            scores, values = np.ascontiguousarray(self.selection[:, h]), np.ascontiguousarray(self.values[:, h])
            total += pool_outputs(scores, values, amounts.indptr, amounts.data, self.log_null, tokens=amounts.indices)
        return total


class ScoreDescent:
    """Mini-batch Adam on the scores; its state stays, so that training can go on with new documents.

    Parameters
    ----------
    tokens, queries, outputs
        |S|, H, K. One output is the binary model.
    ridge_selection, ridge_value
        Factors of |a|^2 / 2 and |g|^2 / 2 beside the mean loss.
    rng
        Order of the documents; start of several queries, which must differ to become different.
    """

    def __init__(
        self,
        tokens: int,
        ridge_selection: float,
        ridge_value: float,
        rng: np.random.Generator,
        *,
        queries: int = 1,
        outputs: int = 1,
    ) -> None:
        self.ridge_selection, self.ridge_value, self.rng = ridge_selection, ridge_value, rng
        start = rng.standard_normal((tokens, queries)) if queries > 1 else np.zeros((tokens, 1))
        self.selection: Array = start
        self.values: Array = np.zeros((tokens, queries, outputs))
        self.bias: Array = np.zeros(outputs)
        self._moments = tuple(np.zeros((2, *part.shape)) for part in (self.selection, self.values, self.bias))
        self._steps = 0

    @property
    def scores(self) -> Scores:
        """The model as it is now, a copy."""
        return Scores(self.selection.copy(), self.values.copy(), self.bias.copy())

    def fit(
        self,
        amounts: sparse.csr_array,
        targets: Array,
        weights: Array,
        epochs: int,
        batch: int,
        after: Callable[[int], bool] | None = None,
    ) -> Self:
        """Train with a step length that falls to zero like a cosine; `after(epoch)` may end it by returning True."""
        for epoch in range(epochs):
            self.epoch(amounts, targets, weights, batch, (1 + np.cos(np.pi * epoch / epochs)) / 2)
            if after is not None and after(epoch):
                break
        return self

    def epoch(self, amounts: sparse.csr_array, targets: Array, weights: Array, batch: int, factor: float = 1.0) -> None:
        """Go once through the documents.

        `amounts` (n, |S|) are counts or what stands for them, `targets` (n, outputs) 0 or 1, `weights` (n,) of documents.
        """
        moments_a, moments_g, moments_b = self._moments
        self._steps = _epoch(
            amounts.indptr, amounts.indices, amounts.data, targets, weights, self.rng.permutation(len(weights)), batch,
            self.selection, self.values, self.bias, moments_a, moments_g, moments_b, self._steps,
            factor * STEP_SELECTION, factor * STEP_VALUE, self.ridge_selection, self.ridge_value,
        )  # fmt: skip


def schedule(documents: int, epochs: int, batch: int) -> tuple[int, int]:
    """Epochs and batch size: small sets are seen more often, in smaller batches, until there are enough steps."""
    size = int(np.clip(documents // 32, 1, batch))
    steps = -(-documents // size)
    return max(epochs, -(-LEAST_STEPS // steps)), size


# no `ninf`: minus infinity stands for the null token that is not there
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "arcp", "nsz"})
def _epoch(
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
                    best[h, 0], shortfall[h, 0] = fall_short(g[:, h, 0], tokens, share[h], winner, null, 1.0)
                else:
                    for k in range(outputs):
                        best[h, k] = value_of(g[:, h], tokens, winner, k)
                    fall_short_rows(g[:, h], tokens, share[h], winner, null, 1.0, shortfall[h])
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


@njit(cache=True, nogil=True, fastmath=True)
def _adam(x: Array, gradient: Array, m: Array, v: Array, lr: float, ridge: float, eps: float) -> None:
    for i in range(len(x)):
        slope = gradient[i] + ridge * x[i]
        m[i] = BETA1 * m[i] + (1.0 - BETA1) * slope
        v[i] = BETA2 * v[i] + (1.0 - BETA2) * slope * slope
        x[i] -= lr * m[i] / (np.sqrt(v[i]) + eps)
