"""How strongly to regularise: a few fits on one part of the documents, judged on the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from whichtoken.training.score_descent import ScoreDescent, schedule

Array = NDArray[np.float64]

GRID = (0.3, 1.0, 3.0, 10.0, 30.0)  # C: weaker and weaker ridge on the values
DEFAULT = 3.0
PATIENCE = 2  # epochs waited for a smaller held-out loss
ENOUGH = 4000  # documents from which on one split says enough
BLOCK = 1 << 16  # documents


@dataclass(frozen=True)
class Choice:
    """What the validation found."""

    C: float
    share: float  # of the training that is run before it is stopped
    temperature: float  # the factor of the outputs that makes probabilities out of them
    losses: dict[float, float]  # held-out log loss by C


@dataclass(frozen=True)
class Documents:
    """What a fit sees."""

    amounts: sparse.csr_array  # (n, |S|)
    labels: NDArray[np.int64]  # number of the class, (n,)
    weights: Array  # (n,)
    classes: int

    @property
    def targets(self) -> Array:
        """1 for the class of a document, (n, outputs); one output for two classes."""
        if self.classes == 2:
            return self.labels[:, None].astype(np.float64)
        return np.eye(self.classes)[self.labels]

    @property
    def concentration(self) -> float:
        """Mean of sum_s q_s^2 under the attention of the start: the size of the features, in which C is measured."""
        shares = []
        for block in row_blocks(self.amounts):
            squares, totals = block.power(2).sum(axis=1), block.sum(axis=1)
            shares.append(squares / np.where(totals > 0, totals, 1.0) ** 2)
        return float(np.mean(np.concatenate(shares))) or 1.0

    def part(self, rows: NDArray[np.int64]) -> Documents:
        """Some of them."""
        return Documents(self.amounts[rows], self.labels[rows], self.weights[rows], self.classes)


def row_blocks(matrix: sparse.csr_array) -> Iterator[sparse.csr_array]:
    """Some rows at a time, for sums whose temporary arrays would else be as large as the matrix."""
    for start in range(0, matrix.shape[0], BLOCK):
        yield matrix[start : start + BLOCK]


def choose(
    documents: Documents,
    descent: Callable[[Documents, float], ScoreDescent],
    grid: tuple[float, ...],
    splits: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    epochs: int,
    batch: int,
    early_stopping: bool,
) -> Choice:
    """The C whose fit has the smallest held-out log loss, after the temperature has been set there too."""
    best: Choice | None = None
    losses: dict[float, float] = {}
    for C in grid:
        outputs, labels, weights, used = [], [], [], []
        for fit_rows, held_rows in splits:
            fit, held = documents.part(fit_rows), documents.part(held_rows)
            trained = descent(fit, C)
            length, size = schedule(len(fit.labels), epochs, batch)
            stop = _EarlyStop(trained, held) if early_stopping else None
            trained.fit(fit.amounts, fit.targets, fit.weights, length, size, stop)
            outputs.append(trained.scores.outputs(held.amounts))
            labels.append(held.labels)
            weights.append(held.weights)
            used.append(1.0 if stop is None else stop.epochs / length)
        together = np.concatenate(outputs), np.concatenate(labels), np.concatenate(weights)
        temperature = best_temperature(*together)
        losses[C] = log_loss(together[0] * temperature, *together[1:])
        if best is None or losses[C] < losses[best.C]:
            best = Choice(C, float(np.median(used)), temperature, losses)
        else:
            break  # the losses of a path of ridges have one valley
    assert best is not None
    return replace(best, C=_bottom(losses, best.C))


def _bottom(losses: dict[float, float], best: float) -> float:
    """Where the parabola through the best C and its neighbours has its bottom, on a logarithmic scale."""
    grid = list(losses)
    place = grid.index(best)
    if place in (0, len(grid) - 1):
        return best
    near = grid[place - 1 : place + 2]
    bend, slope, _ = np.polyfit(np.log(near), [losses[C] for C in near], 2)
    return float(np.exp(-slope / (2 * bend)))


def held_out_splits(
    labels: NDArray[np.int64], groups: Any, fraction: float, seed: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows to fit on and rows to judge on: one split of many documents, three folds of few.

    Groups stay together. Without groups a part is a block of neighbours in the order of the documents: what belongs together
    (the reviews of a film, the mails of a thread) mostly stands together, and on both sides it would flatter weak ridges.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold

    folds = 3 if len(labels) < ENOUGH else max(2, round(1 / fraction))
    if groups is not None:
        enough, splitter = len(np.unique(groups)) >= folds, GroupKFold(folds, shuffle=True, random_state=seed)
    else:
        enough, splitter = min(np.bincount(labels)) >= folds, StratifiedKFold(folds)
    if not enough:
        return []
    parts = list(splitter.split(np.zeros(len(labels)), labels, groups))
    chosen = parts if len(labels) < ENOUGH else [parts[seed % folds]]
    return [(fit, held) for fit, held in chosen if len(np.unique(labels[fit])) == len(np.unique(labels))]


def log_loss(outputs: Array, labels: NDArray[np.int64], weights: Array) -> float:
    """Mean logistic or softmax loss of outputs (n, outputs)."""
    if outputs.shape[1] == 1:
        losses = np.logaddexp(0.0, np.where(labels == 1, -outputs[:, 0], outputs[:, 0]))
    else:
        losses = -log_softmax(outputs, axis=1)[np.arange(len(labels)), labels]
    return float(np.average(losses, weights=weights if weights.sum() > 0 else None))


def best_temperature(outputs: Array, labels: NDArray[np.int64], weights: Array) -> float:
    """The factor that makes the outputs fit the labels best; the decisions stay as they are."""

    def loss(log_factor: float) -> float:
        return log_loss(outputs * np.exp(log_factor), labels, weights)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


class _EarlyStop:
    """Ends a fit whose held-out loss has not fallen for a while, and remembers how long it ran."""

    def __init__(self, descent: ScoreDescent, held: Documents) -> None:
        self.descent, self.held = descent, held
        self.best, self.waited, self.epochs = np.inf, 0, 0

    def __call__(self, epoch: int) -> bool:
        outputs = self.descent.scores.outputs(self.held.amounts)
        temperature = best_temperature(outputs, self.held.labels, self.held.weights)
        loss = log_loss(outputs * temperature, self.held.labels, self.held.weights)
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best, self.epochs = min(self.best, loss), epoch + 1
        return self.waited > PATIENCE
