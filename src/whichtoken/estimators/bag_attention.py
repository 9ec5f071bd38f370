"""Attention pooling on ragged bags: weights, scores, and the loss with its gradient, never padded, never copied.

score_i = sum_h <w_h, X_i^T softmax(X_i q_h)> + b, the model of Barnfield, Cui, Lu (arXiv 2509.25153) with several
queries. Instances are standardised, (x - mean) / scale, without being written anew: the scale goes into q and w, and the
mean of the instances only moves the score by a constant, because attention weights sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit

from whichtoken.estimators.bags import Bags

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of the instances; constant features have scale 1."""

    mean: Array  # (d,)
    scale: Array  # (d,)


@dataclass(frozen=True, eq=False)
class Pooling:
    """One trained score; a query of zero is mean pooling."""

    queries: Array  # (h, d)
    readouts: Array  # (h, d)
    bias: float

    def unscaled(self, scaling: Scaling) -> Pooling:
        """The same score for instances that were not standardised."""
        shift = float((self.readouts @ (scaling.mean / scaling.scale)).sum())
        return Pooling(self.queries / scaling.scale, self.readouts / scaling.scale, self.bias - shift)


def instance_scaling(bags: Bags) -> Scaling:
    """Mean and scale of the features over all instances, in one pass each."""
    mean = bags.tokens.mean(axis=0, dtype=np.float64)
    # the variance of chunks of rows: a centred copy of everything would double the memory
    square = np.zeros(bags.dim)
    step = max(1, (1 << 22) // bags.dim)
    for start in range(0, len(bags.tokens), step):
        square += ((bags.tokens[start : start + step] - mean) ** 2).sum(axis=0)
    scale = np.sqrt(square / len(bags.tokens))
    constant = scale <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    return Scaling(mean, np.where(constant, 1.0, scale))


def no_scaling(dim: int) -> Scaling:
    """Instances as they are."""
    return Scaling(np.zeros(dim), np.ones(dim))


def attention_weights(bags: Bags, queries: Array) -> Array:
    """Softmax weights (total, h); they sum to one in every bag and for every query."""
    scores = _product(bags, queries)
    weights = np.empty((len(queries), len(scores)))
    for h in range(len(queries)):
        _attend(scores[:, h], scores[:, h], bags.starts, weights[h])
    return weights.T


def pooled_features(bags: Bags, query: Array, scaling: Scaling) -> Array:
    """Attention-weighted means of the standardised instances, (n, d)."""
    weights = attention_weights(bags, (query / scaling.scale)[None])[:, 0].astype(bags.tokens.dtype)
    pool = csr_array((weights, np.arange(len(weights)), bags.starts), shape=(len(bags), len(weights)))
    return np.asarray((pool @ bags.tokens - scaling.mean) / scaling.scale, dtype=float)


def bag_scores(bags: Bags, pooling: Pooling) -> Array:
    """Scores (n,) of instances that are not standardised."""
    count = len(pooling.queries)
    columns = _product(bags, np.concatenate([pooling.queries, pooling.readouts]))
    scores: Array = np.full(len(bags), pooling.bias)
    weights = np.empty(len(columns))
    for h in range(count):
        scores += _attend(columns[:, h], columns[:, count + h], bags.starts, weights)
    return scores


def refine(
    bags: Bags, signs: Array, start: Pooling, scaling: Scaling, ridge: float, anchor: float, steps: int
) -> Pooling:
    """Train queries, readouts and bias together by L-BFGS.

    Minimises the mean logistic loss of `signs` (n,) +-1 plus (ridge/2) sum |w_h|^2 plus (anchor/2) sum |q_h - start_h|^2:
    the two-step query is already well aligned where data are scarce, so it is what the trained one is held to.
    """
    shape = start.queries.shape
    first = np.concatenate([start.queries.ravel(), start.readouts.ravel(), [start.bias]])
    centre = np.concatenate([start.queries.ravel(), np.zeros(start.readouts.size + 1)])
    strength = np.concatenate([np.repeat([anchor, ridge], start.queries.size), [0.0]])

    def objective(packed: Array) -> tuple[float, Array]:
        both = packed[:-1].reshape(2 * shape[0], shape[1])
        loss, gradient, slope = loss_and_gradient(bags, signs, both, float(packed[-1]), scaling)
        away = packed - centre
        return loss + float(strength @ away**2) / 2, np.append(gradient.ravel(), slope) + strength * away

    found = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 20}).x
    both = found[:-1].reshape(2, *shape)
    return Pooling(both[0], both[1], float(found[-1]))


def loss_and_gradient(
    bags: Bags, signs: Array, both: Array, bias: float, scaling: Scaling
) -> tuple[float, Array, float]:
    """Mean logistic loss, its gradient in queries and readouts stacked as `both` (2h, d), and its slope in the bias."""
    count = len(both) // 2
    columns = _product(bags, both / scaling.scale)  # (total, 2h): scores, then values
    shift = float((both[count:] @ (scaling.mean / scaling.scale)).sum())
    attention = np.empty((count, len(columns)))
    means = [_attend(columns[:, h], columns[:, count + h], bags.starts, attention[h]) for h in range(count)]
    margins = signs * (np.sum(means, axis=0) + bias - shift)
    slopes = -signs * expit(-margins) / len(signs)  # (n,)
    back = np.empty((len(columns), 2 * count), dtype=bags.tokens.dtype)
    for h in range(count):
        _push_back(attention[h], columns[:, count + h], means[h], slopes, bags.starts, back[:, h], back[:, count + h])
    gradient = (bags.tokens.T @ back).T.astype(float)
    gradient[count:] -= slopes.sum() * scaling.mean  # the weights of a bag sum to one; those of its scores to zero
    return float(np.logaddexp(0, -margins).mean()), gradient / scaling.scale, float(slopes.sum())


def _product(bags: Bags, directions: Array) -> Floats:
    """Instances times directions (k, d), (total, k), in the precision of the instances."""
    return bags.tokens @ directions.T.astype(bags.tokens.dtype)


@njit(cache=True, nogil=True)
def _attend(scores: Floats, values: Floats, starts: NDArray[np.intp], weights: Array) -> Array:
    """Write the softmax of `scores` within bags into `weights`; return the weighted means of `values`, (n,)."""
    means = np.empty(len(starts) - 1)
    for i in range(len(means)):
        first, end = starts[i], starts[i + 1]
        peak = scores[first]
        for k in range(first + 1, end):
            peak = max(peak, scores[k])
        total = 0.0
        for k in range(first, end):
            weights[k] = np.exp(np.float64(scores[k]) - peak)
            total += weights[k]
        mean = 0.0
        for k in range(first, end):
            weights[k] /= total
            mean += weights[k] * values[k]
        means[i] = mean
    return means


@njit(cache=True, nogil=True)
def _push_back(
    weights: Array,
    values: Floats,
    means: Array,
    slopes: Array,
    starts: NDArray[np.intp],
    score_slopes: Floats,
    value_slopes: Floats,
) -> None:
    """Write the derivatives of the loss in the scores and values of the instances."""
    for i in range(len(means)):
        for k in range(starts[i], starts[i + 1]):
            value_slopes[k] = slopes[i] * weights[k]
            score_slopes[k] = slopes[i] * weights[k] * (values[k] - means[i])
