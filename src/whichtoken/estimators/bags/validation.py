"""How to train one score on bags: recipes compared by a small cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils.parallel import Parallel, delayed

from whichtoken.attention import RaggedArray
from whichtoken.display.shown import Shown
from whichtoken.estimators._common import encode_labels, stratified_folds
from whichtoken.estimators.bags.data import MAPS, InstanceMap, LabeledBags, fourier_map, instance_scaling, linear_map
from whichtoken.estimators.bags.training import Network, Pooling, Queries, Recipe, Score, refine, train

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
Made = TypeVar("Made")

TEMPERATURES = (0.0, 1.0, 2.0, 4.0)  # 0 is mean pooling
RIDGES = (1e-3, 1e-2, 1e-1)
ANCHORS = (1e-1, 1e-2)
BANDWIDTHS = (0.5, 1.0, 2.0)
NETWORK_RIDGES = (3e-2, 1e-2, 3e-3)  # from the strongest on, until one does no better
NETWORK_STEPS = (20, 40, 80, 160)  # the same
COMPARED_FOLDS = 3
COMPARED_FLOATS = 1_000_000  # of larger data a part of the bags is compared
CLEARLY = 2.0  # standard errors by which another map must lower the log loss to be called better
VALIDATION_FLOATS = 30_000_000  # larger data are validated on a part of their bags


@dataclass(frozen=True)
class Search:
    """What is looked for: the grid, and what is fixed."""

    temperatures: Sequence[float]
    ridges: Sequence[float] | None  # None: those that suit the map
    queries: int
    steps: int  # of the refinement; 0 leaves the two-step queries as they are
    seed: int
    jobs: int | None = None


@dataclass(frozen=True)
class ScoreChoice(Shown):
    """How a score was trained, and the validated log losses of the best of each kind (nan where none was validated)."""

    instance_map: str
    C: float  # inverse strength of the ridge
    temperature: float | None  # norm of the two-step queries; 0 is mean pooling; None: a network finds its own
    anchor: float | None  # how firmly queries are held to their two steps while all is trained; None: they stay there
    bandwidth: float | None  # of Fourier features
    steps: int | None  # of a network
    mean_loss: float
    attention_loss: float

    @property
    def pooling(self) -> str:
        """What pools: "attention" or "mean"."""
        return "mean" if self.temperature == 0 else "attention"

    def __str__(self) -> str:
        """One line for people."""
        losses = f"validated log loss {self.attention_loss:.4f} (mean pooling {self.mean_loss:.4f})"
        return f"{self.instance_map} map, {self.pooling} pooling, C={self.C:.3g}, {losses}"


@dataclass(frozen=True)
class BagChoice(Shown):
    """How a classifier was trained: one choice per score, which is one for two classes and one per class for more."""

    scores: tuple[ScoreChoice, ...]

    @property
    def pooling(self) -> str:
        """What pools: "attention", or "mean" where attention did not help any of the scores."""
        return "attention" if any(score.pooling == "attention" for score in self.scores) else "mean"

    def __str__(self) -> str:
        return "; ".join(map(str, self.scores))


def fit_score(
    kind: str, data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search
) -> tuple[ScoreChoice, Score]:
    """Choose a recipe for instances mapped in this way, and train it on all bags."""
    if kind == "network":
        return _fit_network(data, splits, search)
    if kind == "linear":
        maps: dict[float | None, InstanceMap] = {None: linear_map(data.bags.dim)}
    else:
        scaling = instance_scaling(data.bags, data.all_weights)
        bandwidths = BANDWIDTHS if splits else (BANDWIDTHS[len(BANDWIDTHS) // 2],)
        maps = {bandwidth: fourier_map(scaling, bandwidth, search.seed) for bandwidth in bandwidths}
    tried = {
        bandwidth: _select(replace(data, bags=seen.bags(data.bags)), splits, search) for bandwidth, seen in maps.items()
    }
    bandwidth = min(tried, key=lambda bandwidth: tried[bandwidth].loss)
    found, seen = tried[bandwidth], maps[bandwidth]
    pooling = train(replace(data, bags=seen.bags(data.bags)), found.recipe, search.queries, search.steps)
    choice = ScoreChoice(
        kind, _inverse(found.recipe.ridge, data), found.recipe.temperature, found.recipe.anchor, bandwidth, None,
        found.mean_loss, found.attention_loss,
    )  # fmt: skip
    return choice, Score(seen, pooling)


def validation_splits(data: LabeledBags, cv: Any, groups: NDArray[Any] | None, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows to validate on.

    A number of folds is cut at random, with the classes spread evenly and groups kept together; there are fewer folds where
    a class has few members, and none where it has one. Anything else is what scikit-learn accepts as `cv`.
    """
    if isinstance(cv, int | np.integer):
        rows = np.arange(len(data.signs))
        share = VALIDATION_FLOATS / data.bags.vectors.size
        if share < 1:
            rows = np.random.default_rng(seed).permutation(rows)[: max(2 * cv, int(share * len(rows)))]
        signs, kept = data.signs[rows], None if groups is None else groups[rows]
        count = int(min(cv, (signs > 0).sum(), (signs < 0).sum(), len(rows) if kept is None else len(np.unique(kept))))
        if count < 2:
            return []
        parts = [(rows[inside], rows[outside]) for inside, outside in stratified_folds(signs, count, kept, seed)]
    else:
        parts = list(check_cv(cv).split(data.signs, data.signs, groups))

    def has_both_classes(weighted: LabeledBags, rows: Rows) -> bool:
        return len(np.unique(weighted.signs[rows][weighted.weights[rows] > 0])) == 2

    # groups and weights may leave a part with one class, or with nothing to validate on
    return [
        (inside, outside)
        for inside, outside in parts
        if data.weights[outside].any() and all(has_both_classes(seen, inside) for seen in (data, data.for_query))
    ]


@dataclass(frozen=True)
class _Selection:
    """The recipe, and validated log losses of the best of each kind (nan where none was validated)."""

    recipe: Recipe
    mean_loss: float
    attention_loss: float

    @property
    def loss(self) -> float:
        return self.attention_loss if self.recipe.temperature else self.mean_loss


def _select(data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search) -> _Selection:
    """Choose the recipe with the least log loss in a cross-validation.

    Query and standardization are computed anew in every fold; all temperatures and ridges share them. Only the best pair is
    also tried with refinement. Mean pooling, a temperature of 0, wins ties.
    """
    ridges, temperatures = search.ridges or RIDGES, search.temperatures
    if not splits:
        return _Selection(Recipe(temperatures[0], ridges[len(ridges) // 2]), float("nan"), float("nan"))
    tried = temperatures if data.bags.lengths.max() > 1 else (0.0,)  # a bag of one has nothing to attend to
    if len(tried) == len(ridges) == 1 and not (tried[0] and search.steps):  # nothing to choose from
        return _Selection(Recipe(tried[0], ridges[0]), float("nan"), float("nan"))
    folds = _each(search, lambda split: _Fold(data, split[0], split[1], tried, ridges, search.queries), splits)
    losses = {recipe: fmean(fold.losses[recipe] for fold in folds) for recipe in folds[0].losses}
    best = _best(losses, attends=True)
    if best and search.steps:
        for anchor in ANCHORS:
            refined = replace(best, anchor=anchor)
            losses[refined] = fmean(
                _each(search, partial(_Fold.refined_loss, recipe=refined, steps=search.steps), folds)
            )
            if losses[refined] >= losses[best]:
                break  # the losses of a path of anchors have one valley
            best = refined
    kinds = _best(losses, attends=False), _best(losses, attends=True)
    least = [losses[recipe] if recipe else float("nan") for recipe in kinds]
    return _Selection(min((recipe for recipe in kinds if recipe), key=losses.__getitem__), *least)


def _fit_network(data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search) -> tuple[ScoreChoice, Score]:
    """A network with the ridge and the number of steps of the least log loss in a cross-validation."""
    ridges = search.ridges or NETWORK_RIDGES
    ridge, steps, least = ridges[len(ridges) // 2], NETWORK_STEPS[len(NETWORK_STEPS) // 2], float("nan")
    if splits:
        parts = [(data[inside], data[outside]) for inside, outside in splits]
        least = np.inf
        for tried in ridges:
            loss, count = _network_path(parts, tried, search)
            if loss >= least:
                break
            ridge, steps, least = tried, count, loss
    score = Network(data, search.queries, ridge, search.seed).after(steps)
    return ScoreChoice("network", _inverse(ridge, data), None, None, None, steps, float("nan"), least), score


def _network_path(parts: Sequence[tuple[LabeledBags, LabeledBags]], ridge: float, search: Search) -> tuple[float, int]:
    """Least validated log loss along the training, and the number of steps at which it was met."""
    networks = [(Network(training, search.queries, ridge, search.seed), test) for training, test in parts]

    def loss_after(steps: int, pair: tuple[Network, LabeledBags]) -> float:
        return _log_loss(pair[1], pair[0].after(steps))

    least, best = np.inf, NETWORK_STEPS[0]
    for steps in NETWORK_STEPS:
        loss = fmean(_each(search, partial(loss_after, steps), networks))
        if loss >= least:
            break
        least, best = loss, steps
    return float(least), best


def _inverse(ridge: float, data: LabeledBags) -> float:
    """C as scikit-learn has it: the sum of the losses is weighed with it, not their mean."""
    return float(1 / (ridge * data.weights.sum()))


def _each(search: Search, make: Callable[[Any], Made], items: Iterable[Any]) -> list[Made]:
    # threads: the kernels and products below release the interpreter, and nothing is copied
    return list(Parallel(n_jobs=search.jobs, prefer="threads")(delayed(make)(item) for item in items))


def _best(losses: dict[Recipe, float], attends: bool) -> Recipe | None:
    """The recipe of least loss that attends, or that does not."""
    return min((r for r in losses if (r.temperature > 0) == attends), key=losses.__getitem__, default=None)


def _log_loss(test: LabeledBags, score: Score) -> float:
    return float(test.shares @ np.logaddexp(0, -test.signs * score(test.bags)))


class _Fold:
    """One split: what was trained on its rows inside, and its log losses on the rows outside.

    The bags are gathered when they are needed, so that one fold is in memory at a time.
    """

    def __init__(
        self,
        data: LabeledBags,
        inside: Rows,
        outside: Rows,
        temperatures: Sequence[float],
        ridges: Sequence[float],
        queries: int,
    ) -> None:
        self.data, self.inside, self.outside = data, inside, outside
        training, test = data[inside], data[outside]
        self.scaling = instance_scaling(training.bags, training.all_weights)
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
        training = self.data[self.inside]
        pooling = refine(training, start, self.scaling, recipe.ridge, recipe.anchor, steps)
        return self._loss(self.data[self.outside], pooling)

    def _loss(self, test: LabeledBags, pooling: Pooling) -> float:
        return _log_loss(test, Score(linear_map(test.bags.dim), pooling.unscaled(self.scaling)))


@dataclass(frozen=True)
class MapComparison(Shown):
    """Cross-validated errors and log losses with each map of the instances."""

    chosen: str
    bags: int  # that were compared
    errors: dict[str, float]
    log_losses: dict[str, float]
    better: str | None  # a map with a clearly lower log loss than the chosen one, and fewer errors

    def __str__(self) -> str:
        """One sentence, which says so where another map is better."""
        if self.better is None:
            return f"in cross-validation no other map of the instances is clearly better than '{self.chosen}'"
        return (
            f"in cross-validation instance_map='{self.better}' does better: error {self.errors[self.better]:.3f} instead of"
            f" {self.errors[self.chosen]:.3f}, log loss {self.log_losses[self.better]:.3f} instead of"
            f" {self.log_losses[self.chosen]:.3f}"
        )


def compare_maps(
    model: BagClassifier, bags: RaggedArray, y: ArrayLike, groups: NDArray[Any] | None = None
) -> MapComparison:
    """Errors of the same classifier with each map, on the same folds."""
    classes, codes = encode_labels(y, len(bags))
    share = COMPARED_FLOATS / bags.vectors.size
    if share < 1:
        rng = np.random.default_rng(0)
        members = [rng.permutation(np.flatnonzero(codes == code)) for code in np.unique(codes)]
        rows = np.concatenate([some[: max(COMPARED_FOLDS, round(share * len(some)))] for some in members])
        bags, codes, groups = bags[rows], codes[rows], None if groups is None else groups[rows]
    folds = min(COMPARED_FOLDS, int(np.bincount(codes, minlength=len(classes)).min()))
    if folds < 2:
        raise ValueError("compare_maps needs at least two bags of each class")
    splits = list(stratified_folds(codes, folds, groups, seed=0))
    wrong: dict[str, Array] = {}
    losses: dict[str, Array] = {}
    for kind in MAPS:
        wrong[kind], losses[kind] = np.empty((2, len(codes)))
        # a network trains its queries with the rest, whatever the others do
        own = {"training": "joint", "query_share": None, "inverse_temperature": None} if kind == "network" else {}
        candidate: Any = clone(model).set_params(instance_map=kind, cv=COMPARED_FOLDS, **own)
        for inside, outside in splits:
            fitted = clone(candidate).fit(bags[inside], codes[inside])
            shares = fitted.predict_proba(bags[outside])
            wrong[kind][outside] = fitted.predict(bags[outside]) != codes[outside]
            truth = np.searchsorted(fitted.classes_, codes[outside])
            losses[kind][outside] = -np.log(np.maximum(shares[np.arange(len(outside)), truth], 1e-15))
    errors = {kind: float(part.mean()) for kind, part in wrong.items()}
    means = {kind: float(part.mean()) for kind, part in losses.items()}
    chosen, better = model.instance_map, []
    for kind in MAPS:
        gained = losses[kind] - losses[chosen]
        clearly = gained.mean() < -CLEARLY * gained.std() / math.sqrt(len(gained))
        if kind != chosen and errors[kind] < errors[chosen] and clearly:
            better.append(kind)
    return MapComparison(chosen, len(codes), errors, means, min(better, key=means.__getitem__, default=None))
