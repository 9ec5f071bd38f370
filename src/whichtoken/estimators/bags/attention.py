"""Attention pooling on ragged bags: weights, scores, and the loss with its gradient, never padded, never copied.

score_i = sum_h <w_h, X_i^T softmax(X_i q_h)> + b, the model of Barnfield, Cui, Lu (arXiv 2509.25153) with several
queries and, if wanted, a map of the instances before them. Instances are standardised, (x - mean) / scale, without
being written anew: the scale goes into q and w, and the mean of the instances only moves the score by a constant, because
attention weights sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.attention import pool_outputs, pool_weights
from whichtoken.attention.losses import logistic_with_slope
from whichtoken.attention.sequence import NO_NULL, fall_short, lead, weigh
from whichtoken.data.bags import Bags, LabelledBags
from whichtoken.estimators.bags.maps import InstanceMap, Scaling
from whichtoken.training.quasi_newton import quasi_newton

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Pooling:
    """One trained score; a query of zero is mean pooling."""

    queries: Array  # (h, m)
    readouts: Array  # (h, m)
    biases: Array  # (h,), which add up to the bias; which query has how much of it only matters for explanations

    @property
    def bias(self) -> float:
        """Of the whole score."""
        return float(self.biases.sum())

    @classmethod
    def shared(cls, queries: Array, readouts: Array, bias: float) -> Pooling:
        """With the same part of the bias for every query."""
        return cls(queries, readouts, np.full(len(queries), bias / max(1, len(queries))))

    def unscaled(self, scaling: Scaling) -> Pooling:
        """The same score for instances that were not standardised, each query with its own part of the shift."""
        shifts = self.readouts @ (scaling.mean / scaling.scale)
        return Pooling(self.queries / scaling.scale, self.readouts / scaling.scale, self.biases - shifts)


@dataclass(frozen=True, eq=False)
class Score:
    """A map of the instances and the pooling of what it makes of them."""

    map: InstanceMap
    pooling: Pooling

    def columns(self, bags: Bags) -> tuple[Array, Array]:
        """Attention scores (total, h), and values (total, h) that add up to the score once they are weighted."""
        count = len(self.pooling.queries)
        both = self.map.products(bags, np.concatenate([self.pooling.queries, self.pooling.readouts]))
        return both[:, :count], both[:, count:] + self.pooling.biases

    def attention(self, bags: Bags) -> Array:
        """Softmax weights (total, h); they sum to one in every bag and for every query."""
        return np.asarray(pool_weights(self.map.products(bags, self.pooling.queries), bags.starts))

    def contributions(self, bags: Bags) -> Array:
        """What each instance adds to the score, (total,).

        Weights sum to one, so the bias belongs to the instances as well: attention x (value + bias) adds up to the whole
        score, and does not change with the origin of the features, which value and bias alone do.
        """
        scores, values = self.columns(bags)
        return np.asarray((pool_weights(scores, bags.starts) * values).sum(axis=1))

    def __call__(self, bags: Bags) -> Array:
        """Scores (n,)."""
        scores, values = (np.ascontiguousarray(part.T) for part in self.columns(bags))
        return np.asarray(
            np.sum([pool_outputs(*pair, bags.starts) for pair in zip(scores, values, strict=True)], axis=0)
        )


def pooled_features(bags: Bags, query: Array, scaling: Scaling) -> Array:
    """Attention-weighted means of the standardised instances, (n, d)."""
    scores = np.asarray(bags.tokens @ (query / scaling.scale).astype(bags.tokens.dtype), dtype=np.float64)
    weights = np.asarray(pool_weights(scores, bags.starts)).astype(bags.tokens.dtype)
    pool = csr_array((weights, np.arange(len(weights)), bags.starts), shape=(len(bags), len(weights)))
    return np.asarray((pool @ bags.tokens - scaling.mean) / scaling.scale, dtype=float)


def refine(data: LabelledBags, start: Pooling, scaling: Scaling, ridge: float, anchor: float, steps: int) -> Pooling:
    """Train queries, readouts and bias together by quasi-Newton steps.

    Minimises the mean logistic loss plus (ridge/2) sum |w_h|^2 plus (anchor/2) sum |q_h - start_h|^2: the two-step query
    is already well aligned where data are scarce, so it is what the trained one is held to.
    """
    shape = start.queries.shape
    first = np.concatenate([start.queries.ravel(), start.readouts.ravel(), [start.bias]])
    centre = np.concatenate([start.queries.ravel(), np.zeros(start.readouts.size + 1)])
    strength = np.concatenate([np.repeat([anchor, ridge], start.queries.size), [0.0]])

    def objective(packed: Array) -> tuple[float, Array]:
        both = packed[:-1].reshape(2 * shape[0], shape[1])
        loss, gradient, slope = loss_and_gradient(data, both, packed[-1], scaling)
        away = packed - centre
        slopes = strength * away
        loss += (slopes @ away) / 2
        slopes[:-1] += gradient.ravel()
        slopes[-1] = slope
        return loss, slopes

    found = quasi_newton(objective, first, steps, tolerance=1e-5)
    both = found[:-1].reshape(2, *shape)
    return Pooling.shared(both[0], both[1], float(found[-1]))


def loss_and_gradient(data: LabelledBags, both: Array, bias: float, scaling: Scaling) -> tuple[float, Array, float]:
    """Mean logistic loss, its gradient in queries and readouts stacked as `both` (2h, d), and its slope in the bias."""
    count = len(both) // 2
    scaled = both / scaling.scale
    shift = float((scaled[count:] @ scaling.mean).sum())
    gradient = np.zeros_like(scaled)
    bags, rounded = data.bags, scaled.astype(data.bags.tokens.dtype, copy=False)
    loss, slope = _push_back(bags.tokens, bags.starts, data.signs, data.shares, rounded, bias - shift, gradient)
    gradient[count:] -= slope * scaling.mean  # the weights of a bag sum to one; those of its scores to zero
    return loss, gradient / scaling.scale, slope


@njit(cache=True, nogil=True)
def _push_back(
    tokens: Floats,
    starts: NDArray[np.intp],
    signs: Array,
    shares: Array,
    both: Floats,
    bias: float,
    gradient: Array,
) -> tuple[float, float]:
    """Add the slopes of the loss in `both` (2h, d) to `gradient` (2h, d); return the loss and its slope in the bias.

    A bag goes forwards and backwards while it is in the cache, so that the instances are read from memory once.
    """
    count = len(both) // 2
    longest = np.diff(starts).max()
    columns, attention = np.empty((2 * count, longest)), np.empty((count, longest))
    highest, shortfall = np.empty(count), np.empty(count)
    loss = total = 0.0
    for i in range(len(signs)):
        bag = tokens[starts[i] : starts[i + 1]]
        length = len(bag)
        for k in range(length):
            for r in range(2 * count):
                columns[r, k] = _dot(bag[k], both[r])
        output = bias
        for h in range(count):
            top, null, mass = weigh(columns[h, :length], None, None, NO_NULL, attention[h])
            for k in range(length):
                attention[h, k] /= mass
            values = columns[count + h, :length]
            highest[h], shortfall[h] = fall_short(values, None, attention[h], top, null, 1.0)
            output += highest[h] - shortfall[h]
        value, slope = logistic_with_slope(signs[i] * output)
        loss += shares[i] * value
        slope *= signs[i] * shares[i]
        total += slope
        for k in range(length):
            for h in range(count):
                readout_slope = slope * attention[h, k]
                query_slope = readout_slope * lead(columns[count + h, k], highest[h], shortfall[h])
                _add_both(query_slope, readout_slope, bag[k], gradient[h], gradient[count + h])
    return loss, total


# sums may be taken in another order, which lets them run in vector registers; nothing else of floating point is given up
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dot(left: Floats, right: Floats) -> float:
    total = left[0] * right[0]
    for j in range(1, len(right)):
        total += left[j] * right[j]
    return np.float64(total)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_both(first: float, second: float, values: Floats, first_sums: Array, second_sums: Array) -> None:
    """Add the same values to two sums, each times a factor."""
    for j in range(len(values)):
        value = np.float64(values[j])
        first_sums[j] += first * value
        second_sums[j] += second * value
