"""The fit of a text model: a recipe by validation, then the values; and what more documents change."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.estimators.text.documents import Documents, attention_shares
from whichtoken.estimators.text.validation import (
    C_GRID,
    DEFAULT,
    NULL_GRID,
    Choice,
    Rows,
    Trials,
    attention_helps,
    choose_recipe,
    held_out_splits,
    log_loss,
)
from whichtoken.estimators.text.values import (
    AttendedDocuments,
    TextRecipe,
    fit_twice,
    information,
    output_signs,
    run_together,
)
from whichtoken.training.dual_ascent import ReadoutLoss, RidgeProblem, solve_values
from whichtoken.training.score_descent import ScoreDescent, Scores, schedule

Array = NDArray[np.float64]

ENOUGH_TO_CHOOSE = 30_000  # documents that the validation looks at: C is measured per document, so it carries over
REMEMBERED = 1000  # documents that a temperature is an average over, when the model behind it goes on learning
BEND = 0.1  # of a document's loss in the logarithm of the temperature; that of a small batch itself would be biased


@dataclass(frozen=True)
class LearningSettings:
    """What a user asked of the fit; see `TextClassifier`."""

    C: Any
    null: Any
    loss: str
    ridge: float  # of the selection scores
    n_queries: int
    max_epochs: int
    batch_size: int
    cv: Any
    n_jobs: int | None
    verbose: bool

    @property
    def may_step(self) -> bool:
        """Whether attention may leave its start."""
        return self.n_queries == 1 and self.ridge < np.inf

    def losses(self, classes: int) -> tuple[ReadoutLoss, ...]:
        """To choose among; the first one where nothing can be validated."""
        if self.loss == "auto":
            return ("logistic",) if classes == 2 else ("logistic", "squared_hinge")
        return ("squared_hinge",) if self.loss == "squared_hinge" else ("logistic",)


@dataclass(frozen=True, eq=False)
class Memory:
    """What stays of the documents that a model was trained on: how firmly they determine it."""

    precision: Array  # of values and of the output at the mean attention, (|S| + 1, outputs)
    mean: Array  # attention, (|S|,)

    @classmethod
    def of(cls, documents: Documents, scores: Scores, recipe: TextRecipe) -> Memory:
        """After a fit."""
        attended = AttendedDocuments.of(documents, scores.selection, scores.log_null)
        mean = np.asarray(attended.shares.sum(axis=0)) / len(documents.labels)  # shares.mean would copy the shares
        learned = information(attended.shares, scores, documents, recipe, mean)
        return cls(attended.precision[:, None] + learned, mean)


def fit_documents(
    documents: Documents, groups: Any, settings: LearningSettings, rng: np.random.Generator
) -> tuple[Scores, Choice, Memory | None]:
    """The model, what the validation found, and, for one query, what more documents are weighed against."""
    seed = int(rng.integers(2**31))
    trials = _trials(documents, groups, settings, seed)
    Cs = C_GRID if settings.C == "auto" else (float(settings.C),)
    nulls = NULL_GRID if settings.null == "auto" else (float(settings.null),)
    losses = settings.losses(documents.classes)
    rows, start = np.arange(len(documents.labels)), _start(documents, settings, seed)

    def final(recipe: TextRecipe) -> list[Scores]:
        log_null = np.log(recipe.null * documents.mean_mass) if recipe.null > 0 else -np.inf
        return fit_twice(
            AttendedDocuments.of(documents, start(rows), log_null), rows, recipe, settings.ridge, settings.n_jobs
        )

    if not trials.splits:  # too few documents to hold any out
        known = replace(DEFAULT, loss=losses[0])
        if settings.C != "auto":
            known = replace(known, C=Cs[0])
        choice = Choice.of(known if settings.null == "auto" else replace(known, null=nulls[0]))
        (scores,) = final(choice.recipe)
    else:
        recipe = choose_recipe(trials, losses, Cs, nulls)
        moved = replace(recipe, attention_step=settings.may_step)
        # the final fit need not wait for the verdict on its second half
        helps, stages = run_together(
            [partial(attention_helps, trials, recipe, moved), partial(final, moved)], settings.n_jobs
        )
        choice = trials.choice(moved if helps else recipe)
        scores = stages[-1 if helps else 0]
    return scores, choice, None if settings.n_queries > 1 else Memory.of(documents, scores, choice.recipe)


def _trials(documents: Documents, groups: Any, settings: LearningSettings, seed: int) -> Trials:
    if len(documents.labels) > ENOUGH_TO_CHOOSE:
        rows = np.sort(np.random.default_rng(seed).choice(len(documents.labels), ENOUGH_TO_CHOOSE, replace=False))
        documents = documents.part(rows)
        groups = None if groups is None else groups[rows]
    splits = held_out_splits(documents.labels, groups, settings.cv, seed)
    say = _say if settings.verbose else None
    return Trials(documents, splits, _start(documents, settings, seed), settings.ridge, settings.n_jobs, say)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _start(documents: Documents, settings: LearningSettings, seed: int) -> Any:
    """Selection scores for a fit on some documents: 0, or, for several queries, what Adam makes of them."""

    def start(rows: Rows) -> Array:
        tokens = documents.amounts.shape[1]
        if settings.n_queries == 1:
            return np.zeros((tokens, 1))
        part = documents.part(rows)
        concentration = AttendedDocuments.of(part, np.zeros((tokens, 1)), -np.inf).concentration
        C = DEFAULT.C if settings.C == "auto" else float(settings.C)
        descent = ScoreDescent(
            tokens,
            settings.ridge / len(rows),
            concentration / (len(rows) * C),
            np.random.default_rng(seed),
            queries=settings.n_queries,
            outputs=part.outputs,
        )
        epochs, batch = schedule(len(rows), settings.max_epochs, settings.batch_size)
        return descent.fit(part.amounts, part.targets, part.weights, epochs, batch).selection

    return start


def update_model(
    scores: Scores, choice: Choice, memory: Memory, documents: Documents, seen: float, jobs: int | None
) -> tuple[Scores, Choice, Memory]:
    """The model after more documents.

    Those so far stand behind each value as a quadratic of their curvature, the diagonal of Laplace's approximation; beside it
    the loss of the new ones is minimised exactly. The temperature moves likewise, judged before the values do.
    """
    recipe = choice.recipe
    shares = attention_shares(documents.amounts, scores.selection, scores.log_null)
    before = shares @ scores.values[:, 0] + scores.bias
    temperature = _tempered(choice.temperature, before, documents, seen)
    rows, bounds = np.arange(len(documents.labels)), recipe.C * documents.weights
    problems = [
        RidgeProblem(
            shares, rows, signs, bounds, recipe.loss, 1 / memory.precision[:, k], scores.values[:, 0, k].copy(),
            float(scores.bias[k]), memory.mean,
        )
        for k, signs in enumerate(output_signs(documents))
    ]  # fmt: skip
    found = run_together([partial(solve_values, problem) for problem in problems], jobs)
    values = np.stack([output.values for output in found], axis=1)[:, None]
    new = replace(scores, values=values, bias=np.array([output.bias for output in found]))
    learned = information(shares, new, documents, recipe, memory.mean)
    return new, replace(choice, temperature=temperature), replace(memory, precision=memory.precision + learned)


def _tempered(temperature: float, outputs: Array, documents: Documents, seen: float) -> float:
    """The temperature after documents that the model has not learned yet."""
    from scipy.optimize import minimize_scalar

    size = len(documents.labels)

    def loss(log_factor: float) -> float:
        return log_loss(outputs * temperature * np.exp(log_factor), documents.labels, documents.weights)

    if not size or not documents.weights.any():
        return temperature
    weight = min(seen, REMEMBERED) * BEND
    step = minimize_scalar(lambda x: size * loss(x) + weight * x * x / 2, bounds=(-1.0, 1.0), method="bounded").x
    return float(temperature * np.exp(step))
