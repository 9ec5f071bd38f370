"""Class labels as codes, and scores as labels and probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets


def check_labels(y: ArrayLike, samples: int | None = None) -> NDArray[Any]:
    """Labels of one type, (n,); `samples` of them, if that is known."""
    if y is None:
        raise ValueError("y=None: this estimator requires y to be passed, but the target y is None")
    # numpy would silently turn numbers beside texts into texts
    kinds = {isinstance(label, str) for label in np.ravel(np.asarray(y, dtype=object)).tolist()}
    if len(kinds) > 1:
        raise ValueError("y mixes text with other types; labels must all be text or all be numbers")
    labels = column_or_1d(np.asarray(y), warn=True)
    if samples is not None and len(labels) != samples:
        raise ValueError(f"y has {len(labels)} labels for {samples} samples; there must be one for each")
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return np.asarray(labels)


def encode_labels(y: ArrayLike, samples: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Sorted classes (k,) and the place of each label among them (n,); at least two classes."""
    classes, codes = np.unique(check_labels(y, samples), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least two")
    return classes, codes


def checked_clusters(groups: ArrayLike | None, samples: int) -> NDArray[Any] | None:
    """Names of what belongs together, one for each sample."""
    if groups is None:
        return None
    names = np.asarray(groups)
    if names.shape != (samples,):
        raise ValueError(f"groups of shape {names.shape} must have one entry for each of the {samples} samples")
    return names


Array = NDArray[np.float64]


def signs_of(codes: NDArray[np.intp], classes: int) -> list[Array]:
    """Targets -1 and +1 of each score, (n,) each."""
    positives = range(1, 2) if classes == 2 else range(classes)
    return [np.where(codes == code, 1.0, -1.0) for code in positives]


def predicted(scores: Array, classes: NDArray[Any]) -> NDArray[Any]:
    """Labels (n,) of scores (n,) or (n, n_classes)."""
    codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
    return np.asarray(classes[codes])


def probabilities(scores: Array) -> Array:
    """Probabilities (n, n_classes) of scores (n,) or (n, n_classes)."""
    if scores.ndim == 1:
        return np.stack([expit(-scores), expit(scores)], axis=1)
    # normalized in logarithms: a sample that every class rejects firmly must not become 0 / 0
    logs = -np.logaddexp(0, -scores)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
