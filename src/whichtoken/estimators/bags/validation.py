"""How to train one score on bags: recipes compared by a small cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv

from whichtoken.data.bags import LabelledBags
from whichtoken.estimators.bags.attention import Pooling, bag_scores, instance_scaling, refine
from whichtoken.estimators.bags.training import Queries, Recipe

Rows = NDArray[np.intp]

TEMPERATURES = (0.0, 1.0, 2.0, 4.0)  # 0 is mean pooling
RIDGES = (1e-3, 1e-2, 1e-1)
ANCHORS = (1e-1, 1e-2)
VALIDATION_FLOATS = 30_000_000  # larger data are validated on a part of their bags


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


def select(
    data: LabelledBags,
    splits: Sequence[tuple[Rows, Rows]],
    temperatures: Sequence[float],
    ridges: Sequence[float],
    queries: int,
    steps: int,
) -> Selection:
    """Choose the recipe with the least log-loss in a cross-validation.

    Query and standardisation are computed anew in every fold; all temperatures and ridges share them. Only the best pair is
    also tried with refinement. Mean pooling, a temperature of 0, wins ties.
    """
    if not splits:
        return Selection(Recipe(temperatures[0], ridges[len(ridges) // 2]), float("nan"), float("nan"))
    tried = temperatures if data.bags.lengths.max() > 1 else (0.0,)  # a bag of one has nothing to attend to
    folds = [_Fold(data, *split, tried, ridges, queries) for split in splits]
    losses = {recipe: fmean(fold.losses[recipe] for fold in folds) for recipe in folds[0].losses}
    best = _best(losses, attends=True)
    if best and steps:
        for anchor in ANCHORS:
            refined = replace(best, anchor=anchor)
            losses[refined] = fmean(fold.refined_loss(refined, steps) for fold in folds)
            if losses[refined] >= losses[best]:
                break  # the losses of a path of anchors have one valley
            best = refined
    kinds = _best(losses, attends=False), _best(losses, attends=True)
    least = [losses[recipe] if recipe else float("nan") for recipe in kinds]
    return Selection(min((recipe for recipe in kinds if recipe), key=losses.__getitem__), *least)


def validation_splits(data: LabelledBags, cv: Any, groups: NDArray[Any] | None, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows to judge on.

    A number of folds is cut at random, with the classes spread evenly and groups kept together; there are fewer folds where
    a class has few members, and none where it has one. Anything else is what scikit-learn accepts as `cv`.
    """
    if isinstance(cv, int | np.integer):
        rows = np.arange(len(data.signs))
        share = VALIDATION_FLOATS / data.bags.tokens.size
        if share < 1:
            rows = np.random.default_rng(seed).permutation(rows)[: max(2 * cv, int(share * len(rows)))]
        signs, kept = data.signs[rows], None if groups is None else groups[rows]
        count = int(min(cv, (signs > 0).sum(), (signs < 0).sum(), len(rows) if kept is None else len(np.unique(kept))))
        if count < 2:
            return []
        splitter = (StratifiedKFold if kept is None else StratifiedGroupKFold)(count, shuffle=True, random_state=seed)
        parts = [(rows[inside], rows[outside]) for inside, outside in splitter.split(rows, signs, kept)]
    else:
        parts = list(check_cv(cv).split(data.signs, data.signs, groups))
    # groups and weights may leave a part with one class, or with nothing to judge on
    return [
        (inside, outside)
        for inside, outside in parts
        if data.weights[outside].any() and len(np.unique(data.signs[inside][data.weights[inside] > 0])) == 2
    ]


def _best(losses: dict[Recipe, float], attends: bool) -> Recipe | None:
    """The recipe of least loss that attends, or that does not."""
    return min((r for r in losses if (r.temperature > 0) == attends), key=losses.__getitem__, default=None)


class _Fold:
    """One split: what was trained on its rows inside, and its log-losses on the rows outside.

    The bags are gathered when they are needed, so that one fold is in memory at a time.
    """

    def __init__(
        self,
        data: LabelledBags,
        inside: Rows,
        outside: Rows,
        temperatures: Sequence[float],
        ridges: Sequence[float],
        queries: int,
    ) -> None:
        self.data, self.inside, self.outside = data, inside, outside
        training, test = data.subset(inside), data.subset(outside)
        self.scaling = instance_scaling(training.bags, training.weights)
        start = Queries(training, self.scaling, queries)
        self.starts = {
            Recipe(temperature, ridge): pooling
            for temperature in temperatures
            for ridge, pooling in zip(ridges, start.at(temperature, ridges), strict=True)
        }
        self.losses = {recipe: self._loss(test, pooling) for recipe, pooling in self.starts.items()}

    def refined_loss(self, recipe: Recipe, steps: int) -> float:
        """Log-loss of a recipe with an anchor."""
        assert recipe.anchor is not None
        start = self.starts[replace(recipe, anchor=None)]
        training = self.data.subset(self.inside)
        pooling = refine(training, start, self.scaling, recipe.ridge, recipe.anchor, steps)
        return self._loss(self.data.subset(self.outside), pooling)

    def _loss(self, test: LabelledBags, pooling: Pooling) -> float:
        scores = bag_scores(test.bags, pooling.unscaled(self.scaling))
        return float(test.shares @ np.logaddexp(0, -test.signs * scores))
