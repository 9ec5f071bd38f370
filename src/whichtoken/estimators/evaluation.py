"""What every `whichtoken fit` does with its rows: split them, measure a model beside its baseline, write predictions."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupShuffleSplit, train_test_split

from whichtoken.display.text import visible
from whichtoken.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

LARGEST_SEED = 2**32 - 1  # what numpy's and scikit-learn's generators take
FEW_CLASSES = 8  # in a small table so many classes may be real
FOLDS = 3  # of the baseline's validation, each of which needs a row of every class


@dataclass(frozen=True)
class Metrics:
    """What a model does on samples that it has not seen."""

    name: str
    accuracy: float
    log_loss: float
    seconds: float  # of the fit


@dataclass(frozen=True)
class FitReport:
    """What `whichtoken fit` prints; the model was trained on the training part alone."""

    training: int
    test: int
    ours: Metrics
    baseline: Metrics
    notes: tuple[str, ...]


def check_split(share: float, seed: int) -> None:
    """Refuse a share or a seed that nothing can be split with; call it before the table is read."""
    if not 0 < share < 1:
        raise UsageError(f"a test share of {share:g} is not possible; give a number between 0 and 1, such as 0.25")
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"a seed of {seed} is not possible; give a whole number from 0 to {LARGEST_SEED}")


def split_rows(
    path: Path, labels: NDArray[Any], share: float, seed: int, groups: NDArray[Any] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows for training and for the test: with the same share of each class, or with whole groups on either side."""
    check_classes(path, labels)
    units, least = (labels, len(np.unique(labels))) if groups is None else (np.unique(groups), 1)
    test = math.ceil(share * len(units))
    if min(test, len(units) - test) < least:
        what = "rows" if groups is None else "groups"
        raise UsageError(
            f"{path}: a test share of {share:g} puts {test} of {len(units)} {what} into the test and leaves"
            f" {len(units) - test} for training; each part needs at least {least}"
        )
    if groups is None:
        rows = train_test_split(np.arange(len(labels)), test_size=share, random_state=seed, stratify=labels)
    else:
        splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
        rows = next(splitter.split(labels, groups=groups))
    _check_training(path, labels, rows[0])
    return rows[0], rows[1]


def check_classes(path: Path, labels: NDArray[Any]) -> None:
    """Refuse labels that are not classes: one kind only, or almost as many kinds as rows."""
    if not len(labels):
        raise UsageError(f"{path} has no rows")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise UsageError(f"{path} has one class only, {_shown(classes[0])}; a classifier needs at least two")
    if len(classes) > max(FEW_CLASSES, len(labels) / 2):
        raise UsageError(
            f"{path}: the labels have {len(classes)} distinct values in {len(labels)} rows, such as {_shown(classes[0])};"
            " classification needs a few classes that occur often: name the right column, or cut the numbers into ranges"
        )
    if counts.min() < 2:
        rare = classes[counts.argmin()]
        raise UsageError(
            f"{path}: class {_shown(rare)} has one row only; training and test need several, so add rows or leave it out"
        )


def _check_training(path: Path, labels: NDArray[Any], inside: NDArray[np.intp]) -> None:
    for name in np.unique(labels):
        every, left = int((labels == name).sum()), int((labels[inside] == name).sum())
        if left < FOLDS:
            raise UsageError(
                f"{path}: class {_shown(name)} has {every} rows, but the split leaves only {left} for training; at least"
                f" {FOLDS} are needed, so add rows, leave the class out, or choose a smaller test share"
            )


def _shown(label: Any) -> str:
    """A label with quotes where it is text."""
    return visible(repr(label.item() if isinstance(label, np.generic) else label))


def measured(name: str, model: Any, training: tuple[Any, Any], test: tuple[Any, Any]) -> Metrics:
    """Fit the model on (X, y) of the training part and try it on those of the test part."""
    start = time.perf_counter()
    try:
        model.fit(*training)
    except ValueError as error:  # what an estimator says about its data or options is the user's to mend
        raise UsageError(str(error)) from error
    seconds = time.perf_counter() - start
    loss = log_loss(test[1], model.predict_proba(test[0]), labels=model.classes_)
    return Metrics(name, float(np.mean(model.predict(test[0]) == test[1])), float(loss), seconds)


def predictions(model: Any, X: Any, names: dict[str, NDArray[Any]]) -> pd.DataFrame:
    """A table: the names of the rows, their label, and the probability of each class."""
    import pandas as pd

    probabilities = model.predict_proba(X)
    shares = {f"probability_{name}": probabilities[:, k] for k, name in enumerate(model.classes_)}
    return pd.DataFrame({**names, "label": model.predict(X), **shares})
