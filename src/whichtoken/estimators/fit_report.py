"""What every `whichtoken fit` does with its rows: split them, measure a model beside its baseline, write predictions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from whichtoken.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


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


def split_rows(path: Path, labels: NDArray[Any], share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows for training and for the test, with the same share of each class."""
    if not 0 < share < 1:
        raise UsageError(f"test share {share} must lie between 0 and 1")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise UsageError(f"{path} has one class only, {classes.tolist()[0]!r}; a classifier needs at least two")
    try:
        inside, outside = train_test_split(np.arange(len(labels)), test_size=share, random_state=seed, stratify=labels)
    except ValueError as error:
        few = classes[counts.argmin()]
        raise UsageError(
            f"{path}: class {few} has {counts.min()} samples, too few for a training and a test part"
        ) from error
    return inside, outside


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
