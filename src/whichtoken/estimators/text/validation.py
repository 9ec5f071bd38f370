"""How strongly to regularise, how much attention goes to nothing, which loss: a few fits, judged on documents held out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from whichtoken.display.shown import Shown
from whichtoken.estimators.text.documents import Documents
from whichtoken.estimators.text.values import AttendedDocuments, TextRecipe, fit_twice, run_together
from whichtoken.training.dual_ascent import ReadoutLoss

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Splits = list[tuple[Rows, Rows]]

C_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # weaker and weaker ridge on the values
NULL_GRID = (0.03, 0.1, 0.3, 1.0, 3.0)
DEFAULT = TextRecipe(C=3.0, loss="logistic", null=0.3, attention_step=False)  # where nothing can be held out
TRIED = 1e-3  # gap of the values in a trial: far below what held-out documents can tell
ENOUGH = 4000  # documents from which on one fold says enough on the way to a choice
PLENTY = 20_000  # and from which on it says enough in the end


@dataclass(frozen=True)
class Choice(Shown):
    """What the validation found."""

    C: float
    loss: str  # "logistic" or "squared_hinge"
    null: float  # mass of the null token, in units of the mean mass of a document
    attention_step: bool  # whether attention moves from its start
    temperature: float  # the factor of the outputs that makes probabilities out of them
    losses: dict[str, float]  # held-out log loss of everything that was tried

    @classmethod
    def of(cls, recipe: TextRecipe, temperature: float = 1.0, losses: dict[str, float] | None = None) -> Choice:
        """From a recipe."""
        return cls(recipe.C, recipe.loss, recipe.null, recipe.attention_step, temperature, losses or {})

    @property
    def recipe(self) -> TextRecipe:
        """What the final fit follows."""
        loss: ReadoutLoss = "squared_hinge" if self.loss == "squared_hinge" else "logistic"
        return TextRecipe(self.C, loss, self.null, self.attention_step)


@dataclass(frozen=True, eq=False)
class Trial:
    """What held-out documents say of a recipe."""

    temperature: float
    losses: Array  # of each held-out document, weighted, with that temperature, (n,)
    errors: Array  # 1 where the label is wrong, weighted, (n,)

    @property
    def loss(self) -> float:
        """Their mean."""
        return float(self.losses.mean())


class Trials:
    """Fits without the held-out documents, each judged on these, after the temperature has been set there too.

    Parameters
    ----------
    start
        Gives the selection scores (|S|, queries) that a fit on some of the documents starts from.
    ridge
        Of the selection scores.
    jobs
        Threads.
    say
        Told of every trial.
    """

    def __init__(
        self,
        documents: Documents,
        splits: Splits,
        start: Callable[[Rows], Array],
        ridge: float,
        jobs: int | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.documents, self.splits, self.ridge, self.jobs, self.say = documents, splits, ridge, jobs, say
        self.starts = [start(fit) for fit, _ in splits]
        self.log_mass = float(np.log(documents.mean_mass))
        self.found: dict[tuple[TextRecipe, int], Trial] = {}  # by recipe and number of splits
        self._outputs: dict[tuple[TextRecipe, int], Array] = {}  # by recipe and split
        self._attended: dict[tuple[float, int], AttendedDocuments] = {}

    def run(self, recipes: Sequence[TextRecipe], thorough: bool = True) -> list[Trial]:
        """Try what was not tried yet: on all splits, or on one where there are many documents."""
        number = len(self.splits) if thorough or len(self.documents.labels) < ENOUGH else 1
        missing = [
            (recipe, place) for recipe in recipes for place in range(number) if (recipe, place) not in self._outputs
        ]
        for recipe, place in missing:
            self._attend(recipe.null, place)
        outputs = run_together([partial(self._held_out, *pair) for pair in missing], self.jobs)
        self._outputs.update(zip(missing, outputs, strict=True))
        held = np.concatenate([held for _, held in self.splits[:number]])
        labels, weights = self.documents.labels[held], self.documents.weights[held]
        for recipe in recipes:
            if (recipe, number) not in self.found:
                joined = np.concatenate([self._outputs[recipe, place] for place in range(number)])
                temperature = best_temperature(joined, labels, weights)
                shares = weights / weights.mean() if weights.any() else np.ones(len(weights))
                losses, wrong = document_losses(joined * temperature, labels), decide(joined) != labels
                self.found[recipe, number] = trial = Trial(temperature, shares * losses, shares * wrong)
                if self.say is not None:
                    self.say(
                        f"{_described(recipe)}: held-out log loss {trial.loss:.4f}, error {trial.errors.mean():.4f}"
                        f" ({number} of {len(self.splits)} folds)"
                    )
        return [self.found[recipe, number] for recipe in recipes]

    def best(self, recipes: Sequence[TextRecipe], thorough: bool = True) -> TextRecipe:
        """The one with the smallest held-out loss."""
        losses = [trial.loss for trial in self.run(recipes, thorough)]
        return recipes[int(np.argmin(losses))]

    def choice(self, recipe: TextRecipe) -> Choice:
        """The result, with everything that was tried."""
        (trial,) = self.run([recipe])
        most = dict(sorted(self.found, key=lambda key: key[1]))
        losses = {_described(tried): self.found[tried, number].loss for tried, number in most.items()}
        return Choice.of(recipe, trial.temperature, losses)

    def _attend(self, null: float, place: int) -> AttendedDocuments:
        # one query starts from the same scores in every split
        key = null, place if self.starts[place].shape[1] > 1 else 0
        if key not in self._attended:
            log_null = np.log(null) + self.log_mass if null > 0 else -np.inf
            self._attended[key] = AttendedDocuments.of(self.documents, self.starts[place], log_null)
        return self._attended[key]

    def _held_out(self, recipe: TextRecipe, place: int) -> Array:
        fit, held = self.splits[place]
        scores = fit_twice(self._attend(recipe.null, place), fit, recipe, self.ridge, tolerance=TRIED)[-1]
        return scores.outputs(self.documents.amounts[held])


def _described(recipe: TextRecipe) -> str:
    step = ", attention step" if recipe.attention_step else ""
    return f"{recipe.loss}, C={recipe.C:g}, null={recipe.null:g}{step}"


def choose_recipe(
    trials: Trials, losses: Sequence[ReadoutLoss], C_grid: Sequence[float], null_grid: Sequence[float]
) -> TextRecipe:
    """First C for each loss, then the loss, then the null token: by the held-out log loss.

    Between two losses of the values a clear difference in errors comes first: probabilities are calibrated afterwards.
    """
    null = DEFAULT.null if DEFAULT.null in null_grid else null_grid[0]
    candidates = [_walk(trials, replace(DEFAULT, loss=loss, null=null), "C", C_grid) for loss in losses]
    best = trials.best(candidates)
    for rival in candidates:
        ours, theirs = trials.run([best, rival])
        if _clear(ours.errors - theirs.errors):
            best = rival
    return _walk(trials, replace(best, C=_bottom(trials, best, C_grid)), "null", null_grid)


def _bottom(trials: Trials, best: TextRecipe, grid: Sequence[float]) -> float:
    """Where the parabola through the best C and its neighbours has its bottom, on a logarithmic scale."""
    place = grid.index(best.C)
    if place in (0, len(grid) - 1):
        return best.C
    near = grid[place - 1 : place + 2]
    losses = [trial.loss for trial in trials.run([replace(best, C=C) for C in near], thorough=False)]
    bend, slope, _ = np.polyfit(np.log(near), losses, 2)
    return float(np.clip(np.exp(-slope / (2 * bend)), near[0], near[-1])) if bend > 0 else best.C


def attention_helps(trials: Trials, still: TextRecipe, moved: TextRecipe) -> bool:
    """Whether attention may move: unless held-out documents clearly object."""
    if still == moved:
        return False
    before, after = trials.run([still, moved])
    return not _clear(after.losses - before.losses)


def _clear(differences: Array) -> bool:
    """Whether the mean is above 0 by more than its standard error."""
    return bool(differences.mean() > differences.std() / np.sqrt(len(differences)))


def _with(recipe: TextRecipe, name: Literal["C", "null"], value: float) -> TextRecipe:
    return replace(recipe, C=value) if name == "C" else replace(recipe, null=value)


def _walk(trials: Trials, recipe: TextRecipe, name: Literal["C", "null"], grid: Sequence[float]) -> TextRecipe:
    """The bottom of the valley that the losses have along the grid, two trials at a time."""
    low = grid.index(getattr(recipe, name)) if getattr(recipe, name) in grid else 0
    high = min(low + 1, len(grid) - 1)
    while True:
        recipes = [_with(recipe, name, value) for value in grid[low : high + 1]]
        best = trials.best(recipes, thorough=False)
        if best == recipes[0] and low > 0:
            low = max(low - 2, 0)
        elif best == recipes[-1] and high < len(grid) - 1:
            high = min(high + 2, len(grid) - 1)
        else:
            return best


def held_out_splits(labels: NDArray[np.int64], groups: Any, cv: Any, seed: int) -> Splits:
    """Rows to fit on and rows to judge on: all folds, or one of very many documents.

    Groups stay together. Without groups a fold is a block of neighbours in the order of the documents: what belongs together
    (the reviews of a film, the mails of a thread) mostly stands together, and on both sides it would flatter weak ridges.
    A class with fewer documents than folds is never held out, so that every fit knows it.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold, check_cv

    rows = np.arange(len(labels))
    if not isinstance(cv, Integral):
        return _judged(list(check_cv(cv, labels).split(rows, labels, groups)), labels)
    sizes = np.sort(np.bincount(labels))
    folds = min(int(cv), sizes[-2] if groups is None else len(np.unique(groups)))  # two classes must be judged
    if folds < 2:
        return []
    if groups is not None:
        parts = list(GroupKFold(folds, shuffle=True, random_state=seed).split(rows, labels, groups))
    else:
        _warn_of_rare(int(((sizes > 0) & (sizes < folds)).sum()), folds)
        rare = np.bincount(labels)[labels] < folds
        common = rows[~rare]
        parts = [
            (np.sort(np.concatenate([common[fit], rows[rare]])), common[held])
            for fit, held in StratifiedKFold(folds).split(common, labels[common])
        ]
    first = seed % folds
    turned = [*parts[first:], *parts[:first]]
    return _judged(turned if len(labels) < PLENTY else turned[:1], labels)


def _judged(splits: Splits, labels: NDArray[np.int64]) -> Splits:
    """The splits without held-out documents of a class that the fit would not know."""
    known = [(fit, held[np.isin(labels[held], labels[fit])]) for fit, held in splits]
    return [(fit, held) for fit, held in known if len(held) and len(np.unique(labels[fit])) > 1]


def _warn_of_rare(classes: int, folds: int) -> None:
    if classes:
        have = "1 class has" if classes == 1 else f"{classes} classes have"
        warnings.warn(
            f"{have} fewer than {folds} documents: learned, but too rare to be judged by the validation; "
            f"leave such classes out with min_class={folds} (on the command line: --min-class {folds}), or lower cv",
            stacklevel=5,
        )


def decide(outputs: Array) -> NDArray[np.int64]:
    """Number of the class of each row of outputs."""
    return np.asarray(outputs[:, 0] > 0, dtype=np.int64) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def log_loss(outputs: Array, labels: NDArray[np.int64], weights: Array) -> float:
    """Mean logistic or softmax loss of outputs (n, outputs)."""
    losses = document_losses(outputs, labels)
    return float(np.average(losses, weights=weights if weights.any() else None))


def document_losses(outputs: Array, labels: NDArray[np.int64]) -> Array:
    """Logistic or softmax loss of each row of outputs (n, outputs), (n,)."""
    if outputs.shape[1] == 1:
        return np.asarray(np.logaddexp(0.0, np.where(labels == 1, -outputs[:, 0], outputs[:, 0])))
    return np.asarray(-log_softmax(outputs, axis=1)[np.arange(len(labels)), labels])


def best_temperature(outputs: Array, labels: NDArray[np.int64], weights: Array) -> float:
    """The factor that makes the outputs fit the labels best; the decisions stay as they are.

    A normal prior on its logarithm keeps a handful of documents, which may all be right or all be wrong, from an extreme.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_factor: float) -> float:
        return len(labels) * log_loss(outputs * np.exp(log_factor), labels, weights) + log_factor**2 / 2

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))
