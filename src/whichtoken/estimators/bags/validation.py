"""How to train one score on bags: recipes compared by a small cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.model_selection import check_cv
from sklearn.utils.parallel import Parallel, delayed

from whichtoken.display.shown import Shown
from whichtoken.estimators.bags import training
from whichtoken.estimators.bags.data import InstanceMap, LabeledBags, fourier_map, instance_scaling, linear_map
from whichtoken.estimators.bags.training import NetworkRecipe, Pooling, Queries, Recipe, Score
from whichtoken.estimators.common import stratified_folds

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
Made = TypeVar("Made")

TEMPERATURES = (0.0, 1.0, 2.0, 4.0)  # 0 is mean pooling
RIDGES = (1e-3, 1e-2, 1e-1)
ANCHORS = (1e-1, 1e-2)
BANDWIDTHS = (0.5, 1.0, 2.0)
NETWORK_RIDGE = 1e-3
# of the trainings that choose scaling and number of queries
SHORT: dict[str, Any] = {"networks": 1, "epochs": 20, "least": 75}
# by how many standard errors, and by how much, the log loss must be lower for another map than the linear one, or a 2nd query
CLEARLY, LEAST_GAIN = 1.5, 0.02
COMPARED_FLOATS = 5_000_000  # larger data are fitted with the linear map, unless another is asked for
FACTORS = (0.05, 3.0)  # least and largest factor that calibrates
VALIDATION_FLOATS = 30_000_000  # larger data are validated on a part of their bags


@dataclass(frozen=True)
class Search:
    """What is looked for: the grid, and what is fixed."""

    temperatures: Sequence[float]
    ridges: Sequence[float] | None  # None: those that suit the map
    queries: int | None  # None: one or, above a network and where it is clearly better, two
    steps: int  # of the refinement; 0 leaves the two-step queries as they are
    seed: int
    gate: bool = False  # of networks
    compared: bool = False  # whether losses of single bags are wanted
    rival: Array | None = None  # such losses with the linear map, which a network is to beat
    jobs: int | None = None


@dataclass(frozen=True)
class ScoreChoice(Shown):
    """How a score was trained, and the validated log losses of the best of each kind (nan where none was validated)."""

    instance_map: str
    C: float  # inverse strength of the ridge
    temperature: float | None  # norm of the two-step queries; 0 is mean pooling; None: a network finds its own
    anchor: float | None  # how firmly queries are held to their two steps while all is trained; None: they stay there
    bandwidth: float | None  # of Fourier features
    scaling: str | None  # of what a network sees: "feature", each has its own scale, or "shared", all have one
    queries: int  # of a network that is merged from several, those of one of them
    factor: float  # by which a network's score is multiplied, so that its probabilities are calibrated
    mean_loss: float
    attention_loss: float

    @property
    def pooling(self) -> str:
        """What pools: "attention" or "mean"."""
        return "mean" if self.temperature == 0 else "attention"

    def __str__(self) -> str:
        """One line for people."""
        mean = "" if math.isnan(self.mean_loss) else f" (mean pooling {self.mean_loss:.4f})"
        loss = "" if math.isnan(self.attention_loss) else f", validated loss {self.attention_loss:.4f}{mean}"
        if math.isnan(self.attention_loss) and math.isnan(self.mean_loss):
            loss = ", not validated"
        queries = "" if self.queries == 1 else f", {self.queries} queries"
        return f"{self.instance_map} map, {self.pooling} pooling{queries}, C={self.C:.3g}{loss}"


@dataclass(frozen=True)
class BagChoice(Shown):
    """How a classifier was trained: one choice per score, which is one for two classes and one per class for more.

    Where the map was chosen too, `log_losses` has the validated log loss with each map, and `gains` how much lower than with
    the linear one it is, with the standard error of that; both are sums over the scores. The loss of a network whose
    short training was not better than the linear map is that of the short training; a network that was not better in the
    first fold has none. `constant_losses` are the log losses of the same answer for every bag.
    """

    scores: tuple[ScoreChoice, ...]
    constant_losses: tuple[float, ...]
    log_losses: dict[str, float] = field(default_factory=dict)
    gains: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def pooling(self) -> str:
        """What pools: "attention", or "mean" where attention did not help any of the scores."""
        return "attention" if any(score.pooling == "attention" for score in self.scores) else "mean"

    @property
    def instance_map(self) -> str:
        """The map of the instances, which all scores share."""
        return self.scores[0].instance_map

    @property
    def reason(self) -> str:
        """Why this map, in one sentence; empty where it was not chosen."""
        if not self.gains:
            return ""
        others = ", ".join(
            f"{kind} {self.log_losses[kind]:.4f} (lower by {gain:.4f}, standard error {error:.4f})"
            for kind, (gain, error) in self.gains.items()
        ) + ("" if "network" in self.gains else ", network not better in the first fold")
        if self.instance_map == "linear":
            start = "the instances are taken as they are, as no map lowers the validated loss clearly"
        else:
            start = f"the map '{self.instance_map}' of the instances lowers the validated loss clearly"
        loss = self.log_losses[self.instance_map]
        helps = loss < sum(self.constant_losses)
        end = "" if helps else "; the same answer for every bag is as good, so the features predict nothing here"
        return f"{start}: linear {self.log_losses['linear']:.4f}, {others}{end}"

    def __str__(self) -> str:
        return "; ".join([*map(str, self.scores), *([self.reason] if self.gains else [])])


@dataclass(frozen=True, eq=False)
class Selected:
    """A recipe that a validation chose: its log losses on bags held out, and the training on all."""

    choice: ScoreChoice
    losses: Array  # (n,), weighted; 0 for a bag that was never held out
    train: Callable[[], Score]


def choose_map(selected: dict[str, list[Selected]]) -> tuple[str, dict[str, float], dict[str, tuple[float, float]]]:
    """The map of the least log loss, if it is clearly less than the linear one's; log losses, and gains with their errors."""
    losses = {kind: np.sum([part.losses for part in parts], axis=0) for kind, parts in selected.items()}
    gains = {kind: _gain(losses["linear"], part) for kind, part in losses.items() if kind != "linear"}
    better = [kind for kind, pair in gains.items() if _clear(*pair)]
    best = max(better, key=lambda kind: gains[kind][0], default="linear")
    return best, {kind: float(part.sum()) for kind, part in losses.items()}, gains


def _gain(before: Array, after: Array) -> tuple[float, float]:
    """By how much the sum of weighted losses (n,) is lower, and the standard error of that."""
    gained = before - after
    return float(gained.sum()), float(np.sqrt(len(gained)) * gained.std())


def _clear(gain: float, error: float) -> bool:
    return gain > max(CLEARLY * error, LEAST_GAIN)


def select_score(kind: str, data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search) -> Selected | None:
    """Choose a recipe for instances mapped in this way; None for a network that was given up."""
    if kind == "network":
        return _select_networks(data, splits, search)
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

    def trained(some: LabeledBags) -> Score:
        mapped = replace(some, bags=seen.bags(some.bags))
        return Score(seen, training.train(mapped, found.recipe, search.queries or 1, search.steps))

    losses = np.zeros(len(data.signs))
    if search.compared:
        losses = _losses(data, splits, _held_out(data, splits, search, trained))
    choice = ScoreChoice(
        kind, _inverse(found.recipe.ridge, data), found.recipe.temperature, found.recipe.anchor, bandwidth, None,
        search.queries or 1, 1.0, found.mean_loss, found.attention_loss,
    )  # fmt: skip
    return Selected(choice, losses, lambda: trained(data))


def _held_out(
    data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search, trained: Callable[[LabeledBags], Score]
) -> list[Array]:
    """Scores of the bags outside of each split, of a model that was trained inside."""
    return _each(search, lambda split: trained(data[split[0]])(data.bags[split[1]]), splits)


def _losses(data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], scores: Sequence[Array]) -> Array:
    """Losses (n,), which are weighted so that they add up to the mean over the bags held out."""
    total = np.zeros(len(data.signs))
    for (_, outside), part in zip(splits, scores, strict=True):
        total[outside] += data.weights[outside] * data.losses(part, outside)
    return np.asarray(total / sum(data.weights[outside].sum() for _, outside in splits))


def _factor(squared: bool, signs: Array, weights: Array, scores: Array) -> float:
    """The factor (an inverse temperature) with which the scores have the least loss."""
    if squared:
        return float(np.clip((weights * signs) @ scores / max(float(weights @ scores**2), 1e-300), *FACTORS))

    def loss(log: float) -> float:
        return float(weights @ np.logaddexp(0, -signs * np.exp(log) * scores))

    return float(np.exp(minimize_scalar(loss, bounds=np.log(FACTORS), method="bounded").x))


def _select_networks(data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], search: Search) -> Selected | None:
    """Scaling and number of queries by single networks and short trainings; the factor by what is trained in the end.

    The first split says which scaling goes on. None where no network is better there than the linear map; where the short
    training is not better on all splits, no longer one is tried.
    """
    ridge = min((search.ridges or (NETWORK_RIDGE,))[0], 1 / (2 * training.RATES[1]))  # more would overshoot
    recipe = NetworkRecipe("feature", search.queries or 1, ridge, search.gate)
    losses, factor, least = np.zeros(len(data.signs)), 1.0, float("nan")

    def held_out(recipe: NetworkRecipe, splits: Sequence[tuple[Rows, Rows]]) -> list[Array]:
        return _held_out(data, splits, search, lambda some: training.train_networks(some, recipe, search.seed))

    if splits:
        first, outside = splits[:1], splits[0][1]
        scores = dict[NetworkRecipe, list[Array]]()

        def first_loss(recipe: NetworkRecipe) -> float:
            scores[recipe] = held_out(recipe, first)
            return float(_calibrated(data, first, scores[recipe])[1].sum())

        short = [replace(recipe, scaling=scaling, **SHORT) for scaling in training.SCALINGS]
        among = {one: first_loss(one) for one in short}
        best = min(short, key=among.__getitem__)
        tried = [best]
        if search.queries is None and data.bags.lengths.max() > 1:
            two = replace(best, queries=2)
            among[two] = first_loss(two)
            tried += [two] if among[two] < among[best] else []
        if search.rival is not None:
            total = sum(data.weights[rows].sum() for _, rows in splits)
            if min(among.values()) >= search.rival[outside].sum() * total / data.weights[outside].sum():
                return None
        validated = [_calibrated(data, splits, scores[one] + held_out(one, splits[1:])) for one in tried]
        place = len(tried) - 1 if _clear(*_gain(validated[0][1], validated[-1][1])) else 0
        recipe = replace(recipe, scaling=best.scaling, queries=tried[place].queries)
        factor, losses = validated[place]
        if search.rival is None or losses.sum() < search.rival.sum():
            factor, losses = _calibrated(data, splits, held_out(recipe, splits))
        least = float(losses.sum())

    def trained() -> Score:
        score = training.train_networks(data, recipe, search.seed)
        return Score(score.map, score.pooling.times(factor))

    used = recipe.scaling, recipe.queries, factor
    choice = ScoreChoice("network", _inverse(ridge, data), None, None, None, *used, float("nan"), least)
    return Selected(choice, losses, trained)


def _calibrated(data: LabeledBags, splits: Sequence[tuple[Rows, Rows]], scores: Sequence[Array]) -> tuple[float, Array]:
    """The factor that suits all scores, and losses (n,) in which the scores of a split have the factor of the others."""
    held_out = [outside for _, outside in splits]
    parts = [(data.signs[rows], data.weights[rows], part) for rows, part in zip(held_out, scores, strict=True)]

    def factor_of(some: Sequence[tuple[Array, Array, Array]]) -> float:
        return _factor(data.squared, *(np.concatenate(column) for column in zip(*some, strict=True)))

    others = [parts[:k] + parts[k + 1 :] or parts for k in range(len(parts))]
    crossed = [factor_of(some) * part for some, part in zip(others, scores, strict=True)]
    return factor_of(parts), _losses(data, splits, crossed)


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
        signs, kept = data.sides[rows], None if groups is None else groups[rows]
        count = int(min(cv, (signs > 0).sum(), (signs < 0).sum(), len(rows) if kept is None else len(np.unique(kept))))
        if count < 2:
            return []
        parts = [(rows[inside], rows[outside]) for inside, outside in stratified_folds(signs, count, kept, seed)]
    else:
        parts = list(check_cv(cv).split(data.sides, data.sides, groups))

    def has_both_classes(weighted: LabeledBags, rows: Rows) -> bool:
        return len(np.unique(weighted.sides[rows][weighted.weights[rows] > 0])) == 2

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
    folds = _each(search, lambda split: _Fold(data, split, tried, search), splits)
    losses = {recipe: fmean(fold.losses[recipe] for fold in folds) for recipe in folds[0].losses}
    best = _best(losses, attends=True)
    if best and search.steps:
        for anchor in ANCHORS:
            refined = replace(best, anchor=anchor)
            refine_in = partial(_Fold.refined_loss, recipe=refined, steps=search.steps)
            losses[refined] = fmean(_each(search, refine_in, folds))
            if losses[refined] >= losses[best]:
                break  # the losses of a path of anchors have one valley
            best = refined
    kinds = _best(losses, attends=False), _best(losses, attends=True)
    least = [losses[recipe] if recipe else float("nan") for recipe in kinds]
    return _Selection(min((recipe for recipe in kinds if recipe), key=losses.__getitem__), *least)


def _inverse(ridge: float, data: LabeledBags) -> float:
    """C as scikit-learn has it: the sum of the losses is weighed with it, not their mean."""
    return float(1 / (ridge * data.weights.sum()))


def _each(search: Search, make: Callable[[Any], Made], items: Iterable[Any]) -> list[Made]:
    # threads: the kernels and products below release the interpreter, and nothing is copied
    return list(Parallel(n_jobs=search.jobs, prefer="threads")(delayed(make)(item) for item in items))


def _best(losses: dict[Recipe, float], attends: bool) -> Recipe | None:
    """The recipe of least loss that attends, or that does not."""
    return min((r for r in losses if (r.temperature > 0) == attends), key=losses.__getitem__, default=None)


def _mean_loss(test: LabeledBags, score: Score) -> float:
    return float(test.shares @ test.losses(score(test.bags)))


class _Fold:
    """One split: what was trained on its rows inside, and its log losses on the rows outside.

    The bags are gathered when they are needed, so that one fold is in memory at a time.
    """

    def __init__(self, data: LabeledBags, split: tuple[Rows, Rows], tried: Sequence[float], search: Search) -> None:
        self.data, (self.inside, self.outside) = data, split
        inner, test, ridges = data[self.inside], data[self.outside], search.ridges or RIDGES
        self.scaling = instance_scaling(inner.bags, inner.all_weights)
        start = Queries(inner, self.scaling, search.queries or 1)
        self.starts = {
            Recipe(temperature, ridge): pooling
            for temperature in tried
            for ridge, pooling in zip(ridges, start.at(temperature, ridges), strict=True)
        }
        self.losses = {recipe: self._loss(test, pooling) for recipe, pooling in self.starts.items()}

    def refined_loss(self, recipe: Recipe, steps: int) -> float:
        """Loss of a recipe with an anchor."""
        assert recipe.anchor is not None
        start = self.starts[replace(recipe, anchor=None)]
        inner = self.data[self.inside]
        pooling = training.refine(inner, start, self.scaling, recipe.ridge, recipe.anchor, steps)
        return self._loss(self.data[self.outside], pooling)

    def _loss(self, test: LabeledBags, pooling: Pooling) -> float:
        return _mean_loss(test, Score(linear_map(test.bags.dim), pooling.unscaled(self.scaling)))
