"""How good predicted probabilities are on held-out labels, with intervals, and the pages that show it.

Intervals are 95 %: Wilson's for accuracy where samples are independent, otherwise percentiles of a bootstrap over the samples
or, where some belong together, over whole clusters of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.html import COLORS, QUIET, single_page, template_engine, text
from whichtoken.display.shown import Shown
from whichtoken.estimators.common import plain_label

if TYPE_CHECKING:
    from jinja2 import Environment

Array = NDArray[np.float64]

DRAWS = 300  # of the bootstrap
CELLS = 1 << 21  # weights of samples held at a time: about what a cache holds
BINS, LEAST_ROWS = 10, 5  # of the calibration, of equal size; in one row a frequency has no deviation
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
LEAST_PROBABILITY = 1e-15
Z = 1.959963984540054


@dataclass(frozen=True)
class Metrics(Shown):
    """What a model does on samples that it has not seen."""

    name: str
    accuracy: float | None  # None of a number
    log_loss: float | None
    auc: float | None  # area under the ROC curve, for more classes the mean over those tested; None if only one is
    seconds: float  # of the fit
    intervals: dict[str, tuple[float, float]]  # of what is not None
    r2: float | None = None  # of a number
    rmse: float | None = None


@dataclass(frozen=True)
class ClassScore(Shown):
    """How one class is found."""

    label: Any
    rows: int
    precision: float
    recall: float
    f1: float
    f1_interval: tuple[float, float]


@dataclass(frozen=True)
class Calibration(Shown):
    """Probabilities of the predicted labels beside how often these are right, in bins of equal size but for ties."""

    probability: list[float]
    right: list[float]
    rows: list[int]
    error: float  # root mean square over bins, without what chance alone would give


@dataclass(frozen=True)
class Details(Shown):
    """What one number does not say."""

    classes: list[ClassScore]
    confusion: list[list[int]]  # rows: true label, columns: predicted label, in the order of the classes
    calibration: Calibration
    coverage: list[tuple[float, float, float]]  # least probability, share of samples that reach it, accuracy on them


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Probabilities that a model gave to samples it had not seen, once for each repeat."""

    codes: NDArray[
        Any
    ]  # number of the true class, (n,); 0 and 1 for each of several labels, (n, k); the true number, (n,)
    probabilities: list[Array]  # (n, classes) each; of numbers what was predicted, (n, 1)
    clusters: NDArray[Any] | None = None  # (n,), what belongs together
    folds: list[NDArray[np.intp]] | None = None  # (n,) for each repeat: samples of one fold have one model
    weights: list[Array] | None = None  # (n, classes) for each repeat: the label is that of the largest product

    @property
    def kind(self) -> str:
        """What was predicted: a class, several labels, or a number."""
        return "labels" if self.codes.ndim == 2 else "number" if self.codes.dtype.kind == "f" else "class"

    def of_label(self, k: int | slice = slice(None)) -> HeldOut:
        """One of several labels, or all of them as samples that belong together by rows and are compared inside a label."""
        codes = self.codes[:, k]
        count, found = codes[0].size, [part[:, k].ravel() for part in self.probabilities]
        clusters = np.arange(len(codes)) if self.clusters is None and count > 1 else self.clusters
        folds = self.folds or [np.zeros(len(codes), np.intp)] * len(found)
        return HeldOut(
            codes.ravel(),
            [np.stack([1 - part, part], axis=1) for part in found],
            None if clusters is None else np.repeat(clusters, count),
            [np.repeat(fold, count) * count + np.tile(np.arange(count), len(codes)) for fold in folds],
        )

    @property
    def labels(self) -> list[NDArray[np.intp]]:
        """Number of the label that the model gives to each sample, for each repeat."""
        products = self.probabilities if self.weights is None else map(np.multiply, self.probabilities, self.weights)
        return [found.argmax(axis=1) for found in products]


def metrics_of(name: str, held: HeldOut, seconds: float) -> Metrics:
    """Accuracy, log loss and area under the curve, with intervals; of a number R2 and root mean square error."""
    if held.kind == "labels":
        held = held.of_label()
    if held.kind == "number":
        return _number_metrics(name, held, seconds)
    codes = held.codes
    right = np.mean([labels == codes for labels in held.labels], axis=0)
    rows = np.arange(len(codes))
    losses = np.mean([-np.log(np.maximum(p[rows, codes], LEAST_PROBABILITY)) for p in held.probabilities], axis=0)
    folds = held.folds or [np.zeros(len(codes), np.intp)] * len(held.probabilities)
    curves = [_auc_by_weights(found, codes, fold) for found, fold in zip(held.probabilities, folds, strict=True)]

    def numbers(weights: Array) -> Array:
        """(draws, 3) for weights (draws, n) of the samples."""
        total = weights.sum(axis=1)
        areas = np.mean([area(weights) for area in curves], axis=0)
        return np.stack([weights @ right / total, weights @ losses / total, areas], axis=1)

    (accuracy, loss, area), low, high = _bootstrap(numbers, held)
    intervals = dict(zip(("accuracy", "log_loss", "auc"), zip(low, high, strict=True), strict=True))
    if np.isnan(area):
        del intervals["auc"]
    if held.clusters is None:
        intervals["accuracy"] = wilson(accuracy, len(codes))
    return Metrics(name, accuracy, loss, None if np.isnan(area) else area, seconds, intervals)


def _number_metrics(name: str, held: HeldOut, seconds: float) -> Metrics:
    squares = np.mean([(held.codes - found[:, 0]) ** 2 for found in held.probabilities], axis=0)
    centered = held.codes - held.codes.mean()
    least = 1e-12 * np.mean(held.codes**2)  # a smaller spread is rounding

    def numbers(weights: Array) -> Array:
        shares = weights / weights.sum(axis=1, keepdims=True)
        error, spread = shares @ squares, shares @ centered**2 - (shares @ centered) ** 2
        # equal numbers have no R2; as scikit-learn has it, 1 for no error and 0 otherwise
        differ = spread > least
        share = np.where(differ, error / np.where(differ, spread, 1.0), error > 0)
        return np.stack([1 - share, np.sqrt(error)], axis=1)

    values, low, high = _bootstrap(numbers, held)
    ends = zip(("r2", "rmse"), zip(low, high, strict=True), strict=True)
    return Metrics(name, None, None, None, seconds, dict(ends), *values)


def details_of(held: HeldOut, classes: NDArray[Any]) -> Details:
    """Classes one by one, confusion, calibration and what abstaining would give; of the first repeat."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    codes, probabilities = held.codes, held.probabilities[0]
    predicted, confidence = held.labels[0], probabilities.max(axis=1)
    every, hit = np.arange(len(classes)), probabilities.argmax(axis=1) == codes
    of_class, said = np.eye(len(classes))[codes], np.eye(len(classes))[predicted]

    def f1(weights: Array) -> Array:
        both = weights @ (of_class * said)
        return np.asarray(2 * both / np.maximum(weights @ of_class + weights @ said, 1e-300))

    precision, recall, _, rows = precision_recall_fscore_support(codes, predicted, labels=every, zero_division=0)
    values, low, high = _bootstrap(f1, held)
    intervals = zip(low, high, strict=True)
    columns = (rows.tolist(), precision.tolist(), recall.tolist(), values, intervals)
    scores = [ClassScore(plain_label(label), *numbers) for label, *numbers in zip(classes, *columns, strict=True)]
    reached = [(least, confidence >= least) for least in THRESHOLDS]
    coverage = [(least, float(sure.mean()), float(hit[sure].mean())) for least, sure in reached if sure.any()]
    confusion = confusion_matrix(codes, predicted, labels=every).tolist()
    return Details(scores, confusion, calibration_of(confidence, hit), coverage)


def calibration_of(confidence: Array, right: NDArray[np.bool_]) -> Calibration:
    """Probabilities beside frequencies, and the error that chance does not explain."""
    order = np.argsort(confidence, kind="stable")
    ascending = confidence[order]
    firsts = [part[0] for part in np.array_split(ascending, max(1, min(BINS, len(right) // LEAST_ROWS)))]
    # equal probabilities stay together: cut apart, they would tell how the rows are ordered
    parts = np.split(order, np.unique(np.searchsorted(ascending, firsts))[1:])
    said = [float(confidence[part].mean()) for part in parts]
    true = [float(right[part].mean()) for part in parts]
    sizes = [len(part) for part in parts]
    squares = [
        (size, (p - q) ** 2 - q * (1 - q) / max(1, size - 1)) for p, q, size in zip(said, true, sizes, strict=True)
    ]
    mean = sum(size * square for size, square in squares) / len(right)
    return Calibration(said, true, sizes, float(np.sqrt(max(0.0, mean))))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share of independent samples, which may be a mean over repeats; not empty at 0 and at 1."""
    spread = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    middle, scale = share + Z**2 / (2 * count), 1 + Z**2 / count
    return max(0.0, float((middle - spread) / scale)), min(1.0, float((middle + spread) / scale))


def _auc_by_weights(probabilities: Array, codes: NDArray[np.intp], folds: NDArray[np.intp]) -> Callable[[Array], Array]:
    """The area under the ROC curve as a function of weights (draws, n) of the samples.

    It is the share of pairs in the right order, of pairs inside one fold: the folds have different models, whose probabilities
    have no common scale. scikit-learn's function takes one vector of weights and no folds; a bootstrap needs many at once.
    """
    columns = range(1, 2) if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    sorted_by = []
    for column in columns:
        positive = codes == column
        if not np.intersect1d(folds[positive], folds[~positive]).size:
            continue
        inside = np.unique(probabilities[:, column], return_inverse=True)[1] + 1
        steps, ranks, sizes = np.unique(folds * (inside.max() + 1) + inside, return_inverse=True, return_counts=True)
        _, first, lengths = np.unique(steps // (inside.max() + 1), return_index=True, return_counts=True)
        sorted_by.append((np.argsort(ranks, kind="stable"), np.cumsum(sizes) - sizes, first, lengths, positive))

    def area(weights: Array) -> Array:
        found = []
        for order, begins, first, lengths, positive in sorted_by:
            above, below = (
                np.add.reduceat((weights * side)[:, order], begins, axis=1) for side in (positive, ~positive)
            )
            every = np.cumsum(below, axis=1)
            earlier = np.repeat((every - below)[:, first], lengths, axis=1)  # of other folds
            before = every - below / 2 - earlier  # a tie counts half
            pairs = (np.add.reduceat(above, first, axis=1) * np.add.reduceat(below, first, axis=1)).sum(axis=1)
            found.append(np.where(pairs > 0, (above * before).sum(axis=1) / np.maximum(pairs, 1e-300), np.nan))
        return np.asarray(np.mean(found, axis=0)) if found else np.full(len(weights), np.nan)

    return area


def _bootstrap(numbers: Callable[[Array], Array], held: HeldOut) -> tuple[list[float], list[float], list[float]]:
    """Values, and the ends of their intervals, of numbers that are functions of the weights of samples."""
    n = len(held.codes)
    clusters = np.arange(n) if held.clusters is None else np.unique(held.clusters, return_inverse=True)[1]
    count, rng = int(clusters.max()) + 1, np.random.default_rng(0)
    portion = max(1, CELLS // n)
    draws = []
    for first in range(0, DRAWS, portion):
        times = rng.multinomial(count, np.full(count, 1 / count), size=min(portion, DRAWS - first))
        draws.append(numbers(times[:, clusters].astype(np.float64)))
    drawn = np.concatenate(draws)
    defined = ~np.isnan(drawn).all(axis=0)  # of an area with one class there is nothing to draw
    low, high = np.full((2, drawn.shape[1]), np.nan)
    low[defined], high[defined] = np.nanquantile(drawn[:, defined], [0.025, 0.975], axis=0)
    return numbers(np.ones((1, n)))[0].tolist(), low.tolist(), high.tolist()


SCORES = {"accuracy": "accuracy", "log_loss": "log loss", "auc": "AUC", "r2": "R2", "rmse": "RMSE"}


@cache
def templates() -> Environment:
    """What fills the templates of the estimators."""
    return template_engine("whichtoken.estimators")


def evaluation_page(title: str, report: Mapping[str, Any]) -> str:
    """A page that needs nothing else, from a `FitReport` as a dictionary."""
    return single_page(title, f"<h1>{text(title)}</h1>{evaluation_html(report)}")


def evaluation_html(report: Mapping[str, Any]) -> str:
    """Tables and figure of a `FitReport` as a dictionary."""
    details, scores = report["details"], scores_in(report["ours"])
    picture = "" if details is None else calibration_svg(Calibration(**details["calibration"]))
    return templates().get_template("evaluation.html").render(report=report, scores=scores, picture=picture)


def scores_in(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The scores that a model has, with their names: those of classes, or those of a number."""
    return {
        name: said
        for name, said in SCORES.items()
        if name in metrics["intervals"] or (name == "auc" and metrics["accuracy"] is not None)
    }


def calibration_svg(calibration: Calibration) -> str:
    """The same figure for a page, from a template: a library that draws anything takes longer to load than a fit."""
    least = _least(calibration)
    step = 0.1 if least > 0.4 else 0.2
    ticks = [number * step for number in range(math.ceil(least / step - 1e-9), round(1 / step) + 1)]
    points = list(zip(calibration.probability, calibration.right, *_ends(calibration), strict=True))
    drawn = {"least": least, "ticks": ticks, "points": points, "color": COLORS[0], "quiet": QUIET}
    return templates().get_template("calibration.svg").render(drawn)


def _ends(calibration: Calibration) -> tuple[list[float], list[float]]:
    """Low and high ends of the intervals of the shares that are right."""
    ends = [wilson(share, count) for share, count in zip(calibration.right, calibration.rows, strict=True)]
    return [low for low, _ in ends], [high for _, high in ends]


def _least(calibration: Calibration) -> float:
    """Where both axes begin."""
    return max(0.0, min([*calibration.probability, *_ends(calibration)[0]]) - 0.03)
