"""Training of one score on bags: two-step query, convex head, refinement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.bags import LabelledBags
from whichtoken.estimators.bags.attention import (
    Pooling,
    Scaling,
    instance_scaling,
    loss_and_gradient,
    pooled_features,
    refine,
)
from whichtoken.theory.sparse_tokens.alignment import constant_score
from whichtoken.training.convex_head import logistic_heads

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
        # a bag's slope in the query is a covariance over its instances: a long bag knows it better, and counts for more
        self.by_length = replace(data, weights=data.weights * data.bags.lengths)
        nothing = np.empty((0, data.bags.dim))
        # with the best constant score in the second step, the query of a rare, weak signal does not turn away from it
        constant = constant_score(data.prevalence, "logistic")
        self.first = self._direction(Pooling(nothing, nothing, constant), first_bias=0.0)

    def at(self, temperature: float, ridges: Sequence[float]) -> list[Pooling]:
        """Queries of norm `temperature` with their convex head, for each of the ridges."""
        query = temperature * self.first
        features = pooled_features(self.data.bags, query, self.scaling)
        heads = logistic_heads(features, self.data.signs, ridges, self.data.weights, HEAD_TOLERANCE)
        poolings = [Pooling(query[None], head.readout[None], head.bias) for head in heads]
        if not temperature:  # mean pooling has nothing that a second query could add
            return poolings
        return [self._extended(*pair, features, temperature) for pair in zip(poolings, ridges, strict=True)]

    def _extended(self, pooling: Pooling, ridge: float, features: Array, temperature: float) -> Pooling:
        """The same with the queries that are missing."""
        for _ in range(1, self.count):
            query = temperature * self._direction(pooling, first_bias=pooling.bias)
            features = np.hstack([features, pooled_features(self.data.bags, query, self.scaling)])
            (head,) = logistic_heads(features, self.data.signs, (ridge,), self.data.weights, HEAD_TOLERANCE)
            queries = np.vstack([pooling.queries, query])
            pooling = Pooling(queries, head.readout.reshape(queries.shape), head.bias)
        return pooling

    def _direction(self, pooling: Pooling, first_bias: float) -> Array:
        """Unit query after a gradient step on a readout, then one on the query, both zero so far and beside `pooling`."""
        readout = -READOUT_STEP * self._gradient(self.data, pooling, np.zeros(self.data.bags.dim), first_bias)[-1]
        direction = -self._gradient(self.by_length, pooling, readout, pooling.bias)[len(pooling.queries)]
        return np.asarray(direction / (np.linalg.norm(direction) or 1.0))

    def _gradient(self, data: LabelledBags, pooling: Pooling, readout: Array, bias: float) -> Array:
        """Gradient with a query of zero added, which reads out along `readout`."""
        both = np.vstack([pooling.queries, np.zeros_like(readout), pooling.readouts, readout])
        return loss_and_gradient(data, both, bias, self.scaling)[1]


def train(data: LabelledBags, recipe: Recipe, queries: int, steps: int) -> Pooling:
    """One score for instances as they are, trained by `recipe`."""
    scaling = instance_scaling(data.bags, data.weights)
    (pooling,) = Queries(data, scaling, queries).at(recipe.temperature, (recipe.ridge,))
    if recipe.anchor is not None:
        pooling = refine(data, pooling, scaling, recipe.ridge, recipe.anchor, steps)
    return pooling.unscaled(scaling)
