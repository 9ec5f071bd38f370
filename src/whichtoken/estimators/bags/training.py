"""Attention pooling on ragged bags and its training, one score at a time: two-step query, convex readout, refinement.

score_i = sum_h <w_h, X_i^T softmax(X_i q_h)> + b, the model of Barnfield, Cui, Lu (arXiv 2509.25153) with several
queries and, if wanted, a map of the instances before them. Instances are standardized, (x - mean) / scale, without
being copied: the scale goes into q and w, and the mean of the instances only moves the score by a constant, because
attention weights sum to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from whichtoken.attention import RaggedArray, pool_gradient, pool_outputs, pool_weights
from whichtoken.attention.kernels import NO_NULL, lead, shortfall_of, weigh
from whichtoken.attention.losses import logistic_with_slope
from whichtoken.estimators.bags.data import InstanceMap, LabeledBags, Scaling, instance_scaling
from whichtoken.machine import require_memory
from whichtoken.theory.sparse_tokens.alignment import constant_score
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads
from whichtoken.theory.sparse_tokens.two_step import query_slope, readout_slope

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

READOUT_STEP = 0.5
HEAD_TOLERANCE = 1e-5  # its square is the error that is left
MEMORY, HALVINGS = 20, 20  # of the quasi-Newton steps
HIDDEN = 64  # units of the network
NETWORK_TOLERANCE = 1e-6
SMALL = 0.1  # scale of the queries and readouts of a network at the start


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
        """The same score for instances that were not standardized, each query with its own part of the shift."""
        shifts = self.readouts @ (scaling.mean / scaling.scale)
        return Pooling(self.queries / scaling.scale, self.readouts / scaling.scale, self.biases - shifts)


@dataclass(frozen=True, eq=False)
class Score:
    """A map of the instances and the pooling of what it makes of them."""

    map: InstanceMap
    pooling: Pooling

    def columns(self, bags: RaggedArray) -> tuple[Array, Array]:
        """Attention scores (total, h), and values (total, h) that add up to the score once they are weighted."""
        count = len(self.pooling.queries)
        both = self.map.products(bags, np.concatenate([self.pooling.queries, self.pooling.readouts]))
        return both[:, :count], both[:, count:] + self.pooling.biases

    def attention(self, bags: RaggedArray) -> Array:
        """Softmax weights (total, h); they sum to one in every bag and for every query."""
        return np.asarray(pool_weights(self.map.products(bags, self.pooling.queries), bags.starts))

    def contributions(self, bags: RaggedArray) -> Array:
        """What each instance adds to the score, (total,).

        Weights sum to one, so the bias belongs to the instances as well: attention x (value + bias) adds up to the whole
        score, and does not change with the origin of the features, which value and bias alone do.
        """
        scores, values = self.columns(bags)
        return np.asarray((pool_weights(scores, bags.starts) * values).sum(axis=1))

    def __call__(self, bags: RaggedArray) -> Array:
        """Scores (n,)."""
        scores, values = (np.ascontiguousarray(part.T) for part in self.columns(bags))
        return np.asarray(
            np.sum([pool_outputs(*pair, bags.starts) for pair in zip(scores, values, strict=True)], axis=0)
        )


def pooled_features(bags: RaggedArray, query: Array, scaling: Scaling) -> Array:
    """Attention-weighted means of the standardized instances, (n, d)."""
    scores = np.asarray(bags.vectors @ (query / scaling.scale).astype(bags.vectors.dtype), dtype=np.float64)
    weights = np.asarray(pool_weights(scores, bags.starts)).astype(bags.vectors.dtype)
    pool = csr_array((weights, np.arange(len(weights)), bags.starts), shape=(len(bags), len(weights)))
    return np.asarray((pool @ bags.vectors - scaling.mean) / scaling.scale, dtype=float)


@dataclass(frozen=True)
class Recipe:
    """How to train one score; temperature 0 is mean pooling, and no anchor leaves the two-step query as it is."""

    temperature: float
    ridge: float
    anchor: float | None = None


class Queries:
    """Starts of the queries on one training set: the two steps on the labels, then the same two on what is left of them."""

    def __init__(self, data: LabeledBags, scaling: Scaling, count: int) -> None:
        self.data, self.scaling, self.count = data, scaling, count
        seen = data.for_query
        self.first_shares = seen.signs * seen.shares
        # a bag's slope in the query is a covariance over its instances: a long bag knows it better, and counts for more
        by_length = seen.weights * seen.bags.lengths
        self.second_shares = seen.signs * by_length / by_length.sum()
        # with the best constant score in the second step, the query of a rare, weak signal does not turn away from it
        constant = constant_score(seen.prevalence, "logistic")
        self.first = self._direction(np.zeros(len(seen.bags)), 0.0, constant)

    def at(self, temperature: float, ridges: Sequence[float]) -> list[Pooling]:
        """Queries of norm `temperature` with their convex head, for each of the ridges."""
        query = temperature * self.first
        features = pooled_features(self.data.bags, query, self.scaling)
        heads = logistic_heads(features, self.data.signs, ridges, self.data.weights, HEAD_TOLERANCE)
        poolings = [Pooling.shared(query[None], head.readout[None], head.bias) for head in heads]
        if not temperature:  # mean pooling has nothing that a second query could add
            return poolings
        return [self._extended(*pair, features, temperature) for pair in zip(poolings, ridges, strict=True)]

    def _extended(self, pooling: Pooling, ridge: float, features: Array, temperature: float) -> Pooling:
        """The same with the queries that are missing."""
        for _ in range(1, self.count):
            scores = features @ pooling.readouts.ravel()
            query = temperature * self._direction(scores, pooling.bias, pooling.bias)
            features = np.hstack([features, pooled_features(self.data.bags, query, self.scaling)])
            (head,) = logistic_heads(features, self.data.signs, (ridge,), self.data.weights, HEAD_TOLERANCE)
            queries = np.vstack([pooling.queries, query])
            pooling = Pooling.shared(queries, head.readout.reshape(queries.shape), head.bias)
        return pooling

    def _direction(self, scores: Array, first_bias: float, second_bias: float) -> Array:
        """Unit query after a gradient step on a readout, then one on the query, both zero so far and added to `scores`."""
        bags, signs, (mean, scale) = self.data.bags, self.data.signs, (self.scaling.mean, self.scaling.scale)
        slopes = -self.first_shares * expit(-signs * (scores + first_bias))
        # of instances as they are, not as they are scaled
        readout = -READOUT_STEP * (readout_slope(bags, slopes) - slopes.sum() * mean) / scale**2
        bias = second_bias - readout @ mean
        direction = (
            -query_slope(bags, readout, lambda means: -self.second_shares * expit(-signs * (scores + means + bias)))
            / scale
        )
        return np.asarray(direction / (np.linalg.norm(direction) or 1.0))


def train(data: LabeledBags, recipe: Recipe, queries: int, steps: int) -> Pooling:
    """One score for instances as they are, trained by `recipe`."""
    scaling = instance_scaling(data.bags, data.all_weights)
    (pooling,) = Queries(data, scaling, queries).at(recipe.temperature, (recipe.ridge,))
    if recipe.anchor is not None:
        pooling = refine(data, pooling, scaling, recipe.ridge, recipe.anchor, steps)
    return pooling.unscaled(scaling)


def refine(data: LabeledBags, start: Pooling, scaling: Scaling, ridge: float, anchor: float, steps: int) -> Pooling:
    """Train queries, readouts and bias together by quasi-Newton steps.

    Minimizes the mean logistic loss plus (ridge/2) sum |w_h|^2 plus (anchor/2) sum |q_h - start_h|^2: the two-step query
    is already well aligned where data are scarce, so it is what the trained one is held to.
    """
    shape = start.queries.shape
    first = np.concatenate([start.queries.ravel(), start.readouts.ravel(), [start.bias]])
    center = np.concatenate([start.queries.ravel(), np.zeros(start.readouts.size + 1)])
    strength = np.concatenate([np.repeat([anchor, ridge], start.queries.size), [0.0]])

    def objective(packed: Array) -> tuple[float, Array]:
        both = packed[:-1].reshape(2 * shape[0], shape[1])
        loss, gradient, slope = loss_and_gradient(data, both, packed[-1], scaling)
        away = packed - center
        slopes = strength * away
        loss += (slopes @ away) / 2
        slopes[:-1] += gradient.ravel()
        slopes[-1] = slope
        return loss, slopes

    found = quasi_newton(objective, first, steps, tolerance=1e-5)
    both = found[:-1].reshape(2, *shape)
    return Pooling.shared(both[0], both[1], float(found[-1]))


def loss_and_gradient(data: LabeledBags, both: Array, bias: float, scaling: Scaling) -> tuple[float, Array, float]:
    """Mean logistic loss, its gradient in queries and readouts stacked as `both` (2h, d), and its slope in the bias."""
    count = len(both) // 2
    scaled = both / scaling.scale
    shift = float((scaled[count:] @ scaling.mean).sum())
    gradient = np.zeros_like(scaled)
    bags, rounded = data.bags, scaled.astype(data.bags.vectors.dtype, copy=False)
    loss, slope = _push_back(bags.vectors, bags.starts, data.signs, data.shares, rounded, bias - shift, gradient)
    gradient[count:] -= slope * scaling.mean  # the weights of a bag sum to one; those of its scores to zero
    return loss, gradient / scaling.scale, slope


@njit(cache=True, nogil=True)
def _push_back(
    tokens: Floats, starts: NDArray[np.int64], signs: Array, shares: Array, both: Floats, bias: float, gradient: Array
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
            highest[h], shortfall[h] = shortfall_of(values, None, attention[h], top, null, 1.0)
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


def split_weights(weights: Array, codes: NDArray[np.intp], share: float, seed: int) -> tuple[Array, Array]:
    """Weights (n,) for the readout and for the steps on the query: disjoint parts, drawn from each class alike."""
    rng, for_query = np.random.default_rng(seed), np.zeros(len(codes), dtype=bool)
    for code in np.unique(codes):
        members = rng.permutation(np.flatnonzero((codes == code) & (weights > 0)))
        if len(members) < 2:
            raise ValueError(f"query_share={share} needs two bags of each class; one class has {len(members)}")
        for_query[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    return np.where(for_query, 0.0, weights), np.where(for_query, weights, 0.0)


@dataclass(frozen=True, eq=False)
class _Layers:
    """Parts of one long vector of parameters, all of them views."""

    weights: Array  # (d, m)
    offsets: Array  # (m,)
    both: Array  # (2h, m): queries, then readouts
    bias: Array  # (1,)

    @classmethod
    def of(cls, packed: Array, dim: int, queries: int) -> _Layers:
        ends = np.cumsum([dim * HIDDEN, HIDDEN, 2 * queries * HIDDEN])
        weights, offsets, both, bias = np.split(packed, ends)
        return cls(weights.reshape(dim, HIDDEN), offsets, both.reshape(2 * queries, HIDDEN), bias)


class Network:
    """One network on one training set, trained step by step."""

    def __init__(self, data: LabeledBags, queries: int, ridge: float, seed: int) -> None:
        self.data, self.queries, self.ridge, self.taken = data, queries, ridge, 0
        self.scaling = instance_scaling(data.bags, data.weights)
        self.scaled = _scaled(data.bags, self.scaling)
        dim, rng = data.bags.dim, np.random.default_rng(seed)
        self.packed = np.zeros(dim * HIDDEN + HIDDEN + 2 * queries * HIDDEN + 1)
        start = _Layers.of(self.packed, dim, queries)
        start.weights[:] = rng.standard_normal(start.weights.shape) * np.sqrt(2 / dim)
        start.offsets[:] = rng.standard_normal(HIDDEN) / 2
        start.both[:] = SMALL * rng.standard_normal(start.both.shape)

    def after(self, steps: int) -> Score:
        """The score after so many steps in all; never fewer than before."""
        self.packed = quasi_newton(self._objective, self.packed, steps - self.taken, NETWORK_TOLERANCE)
        self.taken = steps
        layers = _Layers.of(self.packed, self.data.bags.dim, self.queries)
        seen = InstanceMap("network", self.scaling, layers.weights.copy(), layers.offsets.copy())
        queries, readouts = layers.both[: self.queries].copy(), layers.both[self.queries :].copy()
        return Score(seen, Pooling.shared(queries, readouts, float(layers.bias[0])))

    def _objective(self, packed: Array) -> tuple[float, Array]:
        layers = _Layers.of(packed, self.data.bags.dim, self.queries)
        starts, signs, shares = self.data.bags.starts, self.data.signs, self.data.shares
        both = layers.both.astype(np.float32)
        hidden = self.scaled @ layers.weights.astype(np.float32)  # (total, m)
        hidden += layers.offsets.astype(np.float32)
        np.maximum(hidden, 0, out=hidden)
        columns = np.asarray(both @ hidden.T, dtype=np.float64)  # (2h, total)
        pairs = [(columns[h], columns[self.queries + h]) for h in range(self.queries)]
        margins = signs * (np.sum([pool_outputs(*pair, starts) for pair in pairs], axis=0) + layers.bias)
        upstream = -signs * shares * expit(-margins)
        pulled = [pool_gradient(upstream, *pair, starts) for pair in pairs]
        slopes = np.stack([*(part.scores for part in pulled), *(part.values for part in pulled)])  # (2h, total)
        slopes = slopes.astype(np.float32)
        below = slopes.T @ both
        below *= hidden > 0
        gradient = np.concatenate(
            [(self.scaled.T @ below).ravel(), below.sum(axis=0), (slopes @ hidden).ravel(), [upstream.sum()]]
        )
        gradient[:-1] += self.ridge * packed[:-1]
        loss = shares @ np.logaddexp(0, -margins) + self.ridge / 2 * packed[:-1] @ packed[:-1]
        return float(loss), gradient


def _scaled(bags: RaggedArray, scaling: Scaling) -> NDArray[np.float32]:
    """Standardized instances; the products with them take most of the time, and half as long in single precision."""
    require_memory(5 * bags.vectors.size * 4, "instance_map='network'", "use instance_map='linear' or fewer instances")
    return np.asarray((bags.vectors - scaling.mean) / scaling.scale, dtype=np.float32)


def quasi_newton(
    objective: Callable[[Array], tuple[float, Array]], start: Array, steps: int, tolerance: float = 1e-9
) -> Array:
    """A point with a smaller value than `start`, after at most `steps` steps of limited-memory BFGS.

    The two-loop recursion of Nocedal and Wright, Numerical Optimization, algorithm 7.4, with step halving. Compiled, a step
    costs about as much as four products with the remembered moves; where the objective itself takes well under a
    millisecond, a general-purpose minimizer spends more on its own bookkeeping.

    Parameters
    ----------
    objective : callable
        From a point (p,) to the value and the gradient (p,).
    start : array (p,)
    steps : int
    tolerance : float
        The steps end early when one lowers the value by less than this, relative to the larger of 1 and the value.
    """
    x, (value, gradient) = start, objective(start)
    moves, changes = np.zeros((2, MEMORY, len(x)))  # of the point and of the gradient, the k-th in row k % MEMORY
    stored = 0
    for _ in range(steps):
        direction = _direction(moves, changes, stored, gradient)
        slope = float(gradient @ direction)
        # without curvature known yet, a step of length one at most
        length = 1.0 if stored else 1 / max(1.0, float(np.linalg.norm(direction)))
        for _ in range(HALVINGS):
            trial = x + length * direction
            trial_value, trial_gradient = objective(trial)
            if trial_value <= value + 1e-4 * length * slope:
                break
            length /= 2
        else:
            return x
        move, change = trial - x, trial_gradient - gradient
        # a direction of negative curvature would make the metric indefinite
        if move @ change > 1e-10 * (change @ change):
            moves[stored % MEMORY], changes[stored % MEMORY] = move, change
            stored += 1
        gained = value - trial_value
        x, value, gradient = trial, trial_value, trial_gradient
        if gained <= tolerance * max(abs(value), 1.0):
            return x
    return x


@njit(cache=True, nogil=True)
def _direction(moves: Array, changes: Array, stored: int, gradient: Array) -> Array:
    """Minus the gradient in the metric of what is remembered."""
    memory = len(moves)
    count = min(stored, memory)
    direction = -gradient
    if count == 0:
        return direction
    factors = np.empty(count)
    for back in range(count):
        k = (stored - 1 - back) % memory
        factors[back] = np.dot(moves[k], direction) / np.dot(moves[k], changes[k])
        direction -= factors[back] * changes[k]
    k = (stored - 1) % memory
    direction *= np.dot(moves[k], changes[k]) / np.dot(changes[k], changes[k])
    for back in range(count - 1, -1, -1):
        k = (stored - 1 - back) % memory
        direction += (factors[back] - np.dot(changes[k], direction) / np.dot(moves[k], changes[k])) * moves[k]
    return direction
