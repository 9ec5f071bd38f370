"""Training of one score on bags: two-step query, convex head, refinement, and their choice by a small validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from whichtoken.estimators.bag_attention import (
    Pooling,
    Scaling,
    bag_scores,
    instance_scaling,
    loss_and_gradient,
    pooled_features,
    refine,
)
from whichtoken.estimators.bags import Bags
from whichtoken.optim.convex_head import fit_head
from whichtoken.optim.two_step_query import two_step_query

Array = NDArray[np.float64]

TEMPERATURES = (0.0, 1.0, 2.0, 4.0)  # 0 is mean pooling
RIDGES = (1e-3, 1e-2, 1e-1)
ANCHORS = (1e-1, 1e-2)
VALIDATION_FLOATS = 30_000_000  # larger data are validated on a part of their bags


@dataclass(frozen=True)
class Recipe:
    """How to train one score; temperature 0 is mean pooling, and no anchor leaves the two-step query as it is."""

    temperature: float
    ridge: float
    anchor: float | None = None


@dataclass(frozen=True)
class Selection:
    """The recipe, and validated log-losses of the best of each kind (nan where none was validated)."""

    recipe: Recipe
    mean_loss: float
    attention_loss: float

    @property
    def pooling(self) -> str:
        """What pools: "attention" or "mean"."""
        return "attention" if self.recipe.temperature else "mean"


class Queries:
    """Starts of the queries on one training set: the two steps on the labels, then the same two on what is left of them."""

    def __init__(self, bags: Bags, signs: Array, scaling: Scaling, count: int) -> None:
        self.bags, self.signs, self.scaling, self.count = bags, signs, scaling, count
        first = two_step_query(_Standardised(bags, signs, scaling), bias_correction=True).query
        self.first: Array = np.asarray(first / (np.linalg.norm(first) or 1.0))
        self.pooled: dict[bytes, Array] = {}  # features of a query, which all ridges share

    def at(self, temperature: float, ridge: float) -> Pooling:
        """Queries of norm `temperature` with their convex head."""
        # mean pooling has nothing that a second query could add
        queries = [temperature * self.first]
        pooling = self._head(queries, ridge)
        for _ in range(1, self.count if temperature else 1):
            queries.append(temperature * self._residual_direction(pooling))
            pooling = self._head(queries, ridge)
        return pooling

    def _head(self, queries: list[Array], ridge: float) -> Pooling:
        head = fit_head(np.hstack([self._features(query) for query in queries]), self.signs, ridge)
        return Pooling(np.array(queries), head.readout.reshape(len(queries), -1), head.bias)

    def _features(self, query: Array) -> Array:
        key = query.tobytes()
        if key not in self.pooled:
            self.pooled[key] = pooled_features(self.bags, query, self.scaling)
        return self.pooled[key]

    def _residual_direction(self, pooling: Pooling) -> Array:
        nothing = np.zeros(self.bags.dim)
        readout = -self._gradient(pooling, nothing)[-1]
        direction = -self._gradient(pooling, readout)[len(pooling.queries)]
        return np.asarray(direction / (np.linalg.norm(direction) or 1.0))

    def _gradient(self, pooling: Pooling, readout: Array) -> Array:
        """Gradient with a query of zero added, which reads out along `readout`."""
        both = np.vstack([pooling.queries, np.zeros_like(readout), pooling.readouts, readout])
        return loss_and_gradient(self.bags, self.signs, both, pooling.bias, self.scaling)[1]


def train(bags: Bags, signs: Array, recipe: Recipe, queries: int, steps: int) -> Pooling:
    """One score for instances as they are, trained by `recipe`."""
    scaling = instance_scaling(bags)
    return _finish(Queries(bags, signs, scaling, queries), recipe, steps).unscaled(scaling)


def select(
    bags: Bags,
    signs: Array,
    temperatures: Sequence[float],
    ridges: Sequence[float],
    queries: int,
    steps: int,
    folds: int,
    seed: int,
) -> Selection:
    """Choose the recipe with the least log-loss in a stratified cross-validation.

    Query and standardisation are computed anew in every fold; all temperatures and ridges share them. Only the best pair is
    also tried with refinement. Mean pooling, a temperature of 0, wins ties.
    """
    parts = _Folds(bags, signs, queries, folds, seed)
    if parts.count < 2:
        return Selection(Recipe(temperatures[0], ridges[len(ridges) // 2]), float("nan"), float("nan"))
    tried = temperatures if bags.lengths.max() > 1 else (0.0,)  # a bag of one has nothing to attend to
    losses = _validate(parts, [Recipe(t, r) for t in tried for r in ridges], steps)
    best = _best(losses, attends=True)
    if best and steps:
        losses |= _validate(parts, [Recipe(best.temperature, best.ridge, anchor) for anchor in ANCHORS], steps)
    kinds = _best(losses, attends=False), _best(losses, attends=True)
    least = [losses[recipe] if recipe else float("nan") for recipe in kinds]
    return Selection(min((recipe for recipe in kinds if recipe), key=losses.__getitem__), *least)


def _best(losses: dict[Recipe, float], attends: bool) -> Recipe | None:
    """The recipe of least loss that attends, or that does not."""
    return min((r for r in losses if (r.temperature > 0) == attends), key=losses.__getitem__, default=None)


class _Folds:
    """Training parts, ready for their heads, with their held-out parts; one fold in memory at a time.

    There are fewer folds where a class has few members, and none where it has one.
    """

    def __init__(self, bags: Bags, signs: Array, queries: int, folds: int, seed: int) -> None:
        self.bags, self.signs, self.queries, self.seed = bags, signs, queries, seed
        self.rows = np.arange(len(bags))
        share = VALIDATION_FLOATS / bags.tokens.size
        if share < 1:
            self.rows = np.random.default_rng(seed).permutation(self.rows)[: max(2 * folds, int(share * len(bags)))]
        kept = signs[self.rows]
        self.count = int(min(folds, (kept > 0).sum(), (kept < 0).sum()))

    def __iter__(self) -> Iterator[tuple[Queries, Bags, Array]]:
        splitter = StratifiedKFold(self.count, shuffle=True, random_state=self.seed)
        for inside, outside in splitter.split(self.rows, self.signs[self.rows]):
            training = self.bags.subset(self.rows[inside])
            start = Queries(training, self.signs[self.rows[inside]], instance_scaling(training), self.queries)
            yield start, self.bags.subset(self.rows[outside]), self.signs[self.rows[outside]]


def _validate(parts: _Folds, candidates: list[Recipe], steps: int) -> dict[Recipe, float]:
    """Mean held-out log-loss of each candidate."""
    totals = dict.fromkeys(candidates, 0.0)
    for start, test, signs in parts:
        for recipe in candidates:
            scores = bag_scores(test, _finish(start, recipe, steps).unscaled(start.scaling))
            totals[recipe] += float(np.logaddexp(0, -signs * scores).mean()) / parts.count
    return totals


def _finish(start: Queries, recipe: Recipe, steps: int) -> Pooling:
    pooling = start.at(recipe.temperature, recipe.ridge)
    if recipe.anchor is None:
        return pooling
    return refine(start.bags, start.signs, pooling, start.scaling, recipe.ridge, recipe.anchor, steps)


@dataclass(frozen=True)
class _Standardised:
    """Chunks of standardised bags that can be iterated again."""

    bags: Bags
    signs: Array
    scaling: Scaling

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for part, tokens in self.bags.chunks():
            yield (tokens - self.scaling.mean) / self.scaling.scale, self.signs[part]
