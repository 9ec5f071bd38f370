"""Attention pooling on ragged bags and its training, one score at a time: two-step query, convex readout, refinement.

score_i = sum_h <w_h, X_i^T softmax(X_i q_h)> + b, the model of Barnfield, Cui, Lu (arXiv 2509.25153) with several
queries and, if wanted, a map of the instances before them. Instances are standardized, (x - mean) / scale, without
being copied: the scale goes into q and w, and the mean of the instances only moves the score by a constant, because
attention weights sum to one.
"""

from __future__ import annotations

import math
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
from whichtoken.attention.ragged import starts_of
from whichtoken.estimators.bags.data import InstanceMap, LabeledBags, Scaling, instance_scaling, shared_scaling
from whichtoken.machine import require_memory
from whichtoken.theory.sparse_tokens.alignment import loss_slope
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads
from whichtoken.theory.sparse_tokens.two_step import query_slope, readout_slope

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]
Singles = NDArray[np.float32]

READOUT_STEP = 0.5
HEAD_TOLERANCE = 1e-5  # its square is the error that is left
MEMORY, HALVINGS = 20, 20  # of the quasi-Newton steps
SCALINGS = ("feature", "shared")  # of what a network sees: each feature has a scale of its own, or all have one
LAYERS = (128, 64)  # units
DROPOUT, BATCH = 0.3, 10
RATES = (1.5e-3, 6e-3)  # least and largest; between them, the fewer the steps, the larger
MOST_STEPS = 3000
ALIKE = 0.01  # loss by which a merged network may be worse than its parts are on average
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

    def times(self, factor: float) -> Pooling:
        """The score multiplied by a factor."""
        return Pooling(self.queries, factor * self.readouts, factor * self.biases)

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
        outputs = [pool_outputs(*pair, bags.starts) for pair in zip(scores, values, strict=True)]
        return np.asarray(np.sum(outputs, axis=0))


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
        # a bag's slope in the query is a covariance over its instances: a long bag knows it better, and counts for more
        by_length = seen.weights * seen.bags.lengths
        self.second_shares = by_length / by_length.sum()
        # with the best constant score in the second step, the query of a rare, weak signal does not turn away from it
        self.first = self._direction(np.zeros(len(seen.bags)), 0.0, seen.constant)

    def at(self, temperature: float, ridges: Sequence[float]) -> list[Pooling]:
        """Queries of norm `temperature` with their convex head, for each of the ridges."""
        query = temperature * self.first
        features = pooled_features(self.data.bags, query, self.scaling)
        found = heads(features, self.data, ridges)
        poolings = [Pooling.shared(query[None], readout[None], bias) for readout, bias in found]
        if not temperature:  # mean pooling has nothing that a second query could add
            return poolings
        return [self._extended(*pair, features, temperature) for pair in zip(poolings, ridges, strict=True)]

    def _extended(self, pooling: Pooling, ridge: float, features: Array, temperature: float) -> Pooling:
        """The same with the queries that are missing."""
        for _ in range(1, self.count):
            scores = features @ pooling.readouts.ravel()
            query = temperature * self._direction(scores, pooling.bias, pooling.bias)
            features = np.hstack([features, pooled_features(self.data.bags, query, self.scaling)])
            ((readout, bias),) = heads(features, self.data, (ridge,))
            queries = np.vstack([pooling.queries, query])
            pooling = Pooling.shared(queries, readout.reshape(queries.shape), bias)
        return pooling

    def _direction(self, scores: Array, first_bias: float, second_bias: float) -> Array:
        """Unit query after a gradient step on a readout, then one on the query, both zero so far and added to `scores`."""
        bags, seen, (mean, scale) = self.data.bags, self.data.for_query, (self.scaling.mean, self.scaling.scale)
        slopes = seen.shares * seen.slopes(scores + first_bias)
        # of instances as they are, not as they are scaled
        readout = -READOUT_STEP * (readout_slope(bags, slopes) - slopes.sum() * mean) / scale**2
        bias = second_bias - readout @ mean
        slope = query_slope(bags, readout, lambda means: self.second_shares * seen.slopes(scores + means + bias))
        direction = -slope / scale
        return np.asarray(direction / (np.linalg.norm(direction) or 1.0))


def heads(features: Array, data: LabeledBags, ridges: Sequence[float]) -> list[tuple[Array, float]]:
    """Convex readouts of features (n, p) and their biases, for each of the ridges."""
    if not data.squared:
        falling = sorted(set(ridges), reverse=True)
        found = dict(
            zip(falling, logistic_heads(features, data.signs, falling, data.weights, HEAD_TOLERANCE), strict=True)
        )
        return [(found[ridge].readout, found[ridge].bias) for ridge in ridges]
    mean, root = data.shares @ features, np.sqrt(data.shares)
    left, sizes, right = np.linalg.svd(root[:, None] * (features - mean), full_matrices=False)
    known = sizes * (left.T @ (root * (data.signs - data.constant)))
    readouts = [right.T @ (known / (sizes**2 + ridge)) for ridge in ridges]
    return [(readout, data.constant - float(readout @ mean)) for readout in readouts]


def train(data: LabeledBags, recipe: Recipe, queries: int, steps: int) -> Pooling:
    """One score for instances as they are, trained by `recipe`."""
    scaling = instance_scaling(data.bags, data.all_weights)
    (pooling,) = Queries(data, scaling, queries).at(recipe.temperature, (recipe.ridge,))
    if recipe.anchor is not None:
        pooling = refine(data, pooling, scaling, recipe.ridge, recipe.anchor, steps)
    return pooling.unscaled(scaling)


def refine(data: LabeledBags, start: Pooling, scaling: Scaling, ridge: float, anchor: float, steps: int) -> Pooling:
    """Train queries, readouts and bias together by quasi-Newton steps.

    Minimizes the mean loss plus (ridge/2) sum |w_h|^2 plus (anchor/2) sum |q_h - start_h|^2: the two-step query
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
    """Mean loss, its gradient in queries and readouts stacked as `both` (2h, d), and its slope in the bias."""
    count = len(both) // 2
    scaled = both / scaling.scale
    shift = float((scaled[count:] @ scaling.mean).sum())
    gradient = np.zeros_like(scaled)
    bags, rounded = data.bags, scaled.astype(data.bags.vectors.dtype, copy=False)
    targets = data.signs, data.shares, data.squared
    loss, slope = _push_back(bags.vectors, bags.starts, *targets, rounded, bias - shift, gradient)
    gradient[count:] -= slope * scaling.mean  # the weights of a bag sum to one; those of its scores to zero
    return loss, gradient / scaling.scale, slope


@njit(cache=True, nogil=True)
def _push_back(
    tokens: Floats, starts: NDArray[np.int64], signs: Array, shares: Array, squared: bool, both: Floats, bias: float,
    gradient: Array,
) -> tuple[float, float]:  # fmt: skip
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
        if squared:
            slope = output - signs[i]
            value = slope * slope / 2
        else:
            value, slope = logistic_with_slope(signs[i] * output)
            slope *= signs[i]
        loss += shares[i] * value
        slope *= shares[i]
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


@dataclass(frozen=True)
class NetworkRecipe:
    """How to train networks of instances: what they see, and what reads them."""

    scaling: str  # one of SCALINGS
    queries: int
    ridge: float
    gate: bool = False
    networks: int = 3  # how many are merged
    epochs: int = 40
    least: int = 300  # steps, which few bags make in more epochs


def train_networks(data: LabeledBags, recipe: NetworkRecipe, seed: int) -> Score:
    """Networks with attention above them, trained by Adam on small batches of bags with dropout, and merged into one.

    All networks see the same batches, and differ in their start and in what is dropped. With one query, the merged network
    has the mean of their attention scores and the mean of their values, so that it has one query again. Queries of several
    have no common order; then the merged network has all of them, and its score is the mean of the scores.
    """
    scaling = instance_scaling(data.bags, data.weights)
    if recipe.scaling == "shared":
        scaling = shared_scaling(scaling)
    dim, rng = data.bags.dim, np.random.default_rng(seed)
    most = min(int(data.bags.lengths.max()) * BATCH, len(data.bags.vectors))  # instances of a batch
    floats = data.bags.vectors.size + 6 * recipe.networks * max(LAYERS) * most
    require_memory(4 * floats, "instance_map='network'", "use instance_map='linear' or fewer instances")
    net = _Networks(dim, recipe, rng, "square" if data.squared else "logistic")
    instances = np.asarray((data.bags.vectors - scaling.mean) / scaling.scale, dtype=np.float32)
    scaled = RaggedArray.unchecked(data.bags.starts, instances)
    rows = np.flatnonzero(data.weights > 0)
    batches = -(-len(rows) // BATCH)
    epochs = -(-min(max(recipe.epochs * batches, recipe.least), MOST_STEPS) // batches)
    steps = epochs * batches
    largest = min(max(3.6 / steps, RATES[0]), RATES[1])
    moments, taken = np.zeros((2, net.packed.size), dtype=np.float32), 0
    for _ in range(epochs):
        for some in np.array_split(rng.permutation(rows), batches):
            gradient = net.gradient(scaled[some], data.signs[some], data.shares[some] * len(rows) / len(some), rng)
            taken += 1
            # the rate falls to zero as a cosine
            rate = largest * (1 + np.cos(np.pi * taken / steps)) / 2
            _adam(net.packed, gradient, moments, rate, recipe.ridge, taken)
    return net.merged(scaling, data)


class _Networks:
    """Parameters of the networks in one long vector, of which the layers are views, and the slopes of their losses."""

    def __init__(self, dim: int, recipe: NetworkRecipe, rng: np.random.Generator, loss: str = "logistic") -> None:
        self.recipe, self.loss = recipe, loss
        narrow = [*LAYERS[:-1], LAYERS[-1] * (2 if recipe.gate else 1)]
        copies, shapes = recipe.networks, list[tuple[int, ...]]()
        for wide, units in zip((dim, *LAYERS), narrow, strict=False):
            shapes += [(copies, wide, units), (copies, 1, units)]
        shapes += [(copies, 2 * recipe.queries, LAYERS[-1]), (copies, 1)]
        self.packed = np.zeros(sum(map(math.prod, shapes)), dtype=np.float32)
        self.shapes, self.parts = shapes, _views(self.packed, shapes)
        for weights in self.parts[:-2:2]:
            weights[:] = rng.standard_normal(weights.shape) * np.sqrt(2 / weights.shape[1])
        self.parts[-2][:] = SMALL * rng.standard_normal(self.parts[-2].shape)

    def gradient(self, bags: RaggedArray, signs: Array, shares: Array, rng: np.random.Generator) -> Singles:
        """Slopes of the mean loss of every network, with units dropped at random, in all parameters."""
        *layers, both, bias = self.parts
        copies, count, tokens = self.recipe.networks, self.recipe.queries, len(bags.vectors)
        hidden: list[Any] = [bags.vectors[None]]
        drops, gates = [], []
        for place, (weights, offsets) in enumerate(zip(layers[::2], layers[1::2], strict=True), 1):
            units = hidden[-1] @ weights
            units += offsets
            if self.recipe.gate and 2 * place == len(layers):
                units, opened = units[:, :, : LAYERS[-1]], expit(units[:, :, LAYERS[-1] :])
                gates.append(opened)
            np.maximum(units, 0, out=units)
            keep = rng.random(units.shape, dtype=np.float32) >= DROPOUT
            drops.append(keep * np.float32(1 / (1 - DROPOUT)))
            hidden.append(units * drops[-1])
        pooled = hidden[-1] * gates[0] if gates else hidden[-1]
        columns = (both @ pooled.transpose(0, 2, 1)).astype(np.float64)  # (k, 2h, total)
        pair = columns[:, :count].ravel(), columns[:, count:].ravel()
        # every query of every network sees the bags as sequences of its own
        starts = starts_of(np.tile(bags.lengths, copies * count))
        outputs = pool_outputs(*pair, starts).reshape(copies, count, -1).sum(axis=1) + bias  # (k, n)
        upstream = shares * loss_slope(self.loss, outputs, signs)
        pulled = pool_gradient(np.repeat(upstream[:, None], count, axis=1).ravel(), *pair, starts)
        stacked = np.stack([pulled.scores, pulled.values]).reshape(2, copies, count, tokens).transpose(1, 0, 2, 3)
        slopes = stacked.reshape(copies, 2 * count, tokens).astype(np.float32)
        gradient = np.empty_like(self.packed)
        found = _views(gradient, self.shapes)
        found[-1][:, 0], found[-2][:] = upstream.sum(axis=1), slopes @ pooled
        below = slopes.transpose(0, 2, 1) @ both
        for place in range(len(layers) - 2, -1, -2):
            own = place // 2
            if gates and own == len(drops) - 1:
                opened = gates[0]
                closing = below * hidden[own + 1] * opened * (1 - opened)
                below = np.concatenate([below * opened * drops[own] * (hidden[own + 1] > 0), closing], axis=2)
            else:
                below = below * drops[own] * (hidden[own + 1] > 0)
            found[place][:] = hidden[own].transpose(0, 2, 1) @ below
            found[place + 1][:] = below.sum(axis=1, keepdims=True)
            if place:
                below = below @ layers[place].transpose(0, 2, 1)
        return gradient

    def merged(self, scaling: Scaling, data: LabeledBags) -> Score:
        """One network with one query, or with the queries of all."""
        *layers, both, bias = (part.astype(np.float64) for part in self.parts)
        pairs = tuple((weights, offsets[:, 0]) for weights, offsets in zip(layers[::2], layers[1::2], strict=True))
        seen = InstanceMap("network", scaling, pairs, self.recipe.gate)
        copies, count, width = self.recipe.networks, self.recipe.queries, both.shape[2]
        blocks = np.zeros((2, copies, count, copies, width))
        for k in range(copies):
            blocks[0, k, :, k], blocks[1, k, :, k] = both[k, :count], both[k, count:]
        every, readouts = blocks.reshape(2, copies * count, copies * width)
        if count > 1:
            return Score(seen, Pooling.shared(every, readouts / copies, float(bias.mean())))

        def mean_of(kept: list[int]) -> Pooling:
            query, readout = (part[kept].mean(axis=0)[None] for part in (every, readouts))
            return Pooling(query, readout, bias[kept].mean(axis=0))

        def loss(kept: list[int]) -> float:
            pool = mean_of(kept)
            outputs = pool_outputs(mapped @ pool.queries[0], mapped @ pool.readouts[0], data.bags.starts) + pool.bias
            return float(np.sum(data.shares * data.losses(outputs)))

        mapped = seen.bags(data.bags).vectors
        own = [loss([k]) for k in range(copies)]
        first, *others = np.argsort(own).tolist()
        kept = [first]
        # networks that attend to opposite evidence have no common query: such a one is left out
        for k in others:
            if loss([*kept, k]) <= np.mean([own[i] for i in [*kept, k]]) + ALIKE:
                kept.append(k)
        return Score(seen, mean_of(kept))


def _views(packed: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Parts of a long vector, one after the other."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(packed, ends), shapes, strict=True)]


# in single precision throughout, so that it runs in vector registers
@njit(cache=True, nogil=True)
def _adam(packed: Singles, gradient: Singles, moments: Singles, rate: float, decay: float, taken: int) -> None:
    """One step of Adam (Kingma, Ba 2015) with decoupled weight decay (Loshchilov, Hutter 2019), in place."""
    mean, square = moments[0], moments[1]
    first, second = np.float32(1 / (1 - 0.9**taken)), np.float32(1 / np.sqrt(1 - 0.999**taken))
    step, shrink, least = np.float32(rate), np.float32(decay), np.float32(1e-8)
    for i in range(len(packed)):
        slope = gradient[i]
        mean[i] += np.float32(0.1) * (slope - mean[i])
        square[i] += np.float32(0.001) * (slope * slope - square[i])
        packed[i] -= step * (first * mean[i] / (second * np.sqrt(square[i]) + least) + shrink * packed[i])


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
