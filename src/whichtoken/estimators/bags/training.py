"""Training of one score on bags: two-step query, convex head, refinement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from whichtoken.data.bags import LabelledBags
from whichtoken.estimators.bags.attention import Pooling, pooled_features, refine
from whichtoken.estimators.bags.maps import Scaling, instance_scaling
from whichtoken.theory.sparse_tokens.alignment import constant_score
from whichtoken.training.convex_head import logistic_heads
from whichtoken.training.two_step import query_slope, readout_slope

Array = NDArray[np.float64]

READOUT_STEP = 0.5
HEAD_TOLERANCE = 1e-5  # its square is the error that is left


@dataclass(frozen=True)
class Recipe:
    """How to train one score; temperature 0 is mean pooling, and no anchor leaves the two-step query as it is."""

    temperature: float
    ridge: float
    anchor: float | None = None


class Queries:
    """Starts of the queries on one training set: the two steps on the labels, then the same two on what is left of them."""

    def __init__(self, data: LabelledBags, scaling: Scaling, count: int) -> None:
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


def train(data: LabelledBags, recipe: Recipe, queries: int, steps: int) -> Pooling:
    """One score for instances as they are, trained by `recipe`."""
    scaling = instance_scaling(data.bags, data.all_weights)
    (pooling,) = Queries(data, scaling, queries).at(recipe.temperature, (recipe.ridge,))
    if recipe.anchor is not None:
        pooling = refine(data, pooling, scaling, recipe.ridge, recipe.anchor, steps)
    return pooling.unscaled(scaling)


def split_weights(weights: Array, codes: NDArray[np.intp], share: float, seed: int) -> tuple[Array, Array]:
    """Weights (n,) for the readout and for the steps on the query: disjoint parts, drawn from each class alike."""
    rng, for_query = np.random.default_rng(seed), np.zeros(len(codes), dtype=bool)
    for code in np.unique(codes):
        members = rng.permutation(np.flatnonzero((codes == code) & (weights > 0)))
        if len(members) < 2:
            raise ValueError(f"query_share={share} needs two bags of each class; one class has {len(members)}")
        for_query[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    return np.where(for_query, 0.0, weights), np.where(for_query, weights, 0.0)
