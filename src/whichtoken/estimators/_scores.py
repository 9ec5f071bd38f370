"""Labels and probabilities from scores: one score for two classes, one against the rest for more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

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
    # normalised in logarithms: a sample that every class rejects firmly must not become 0 / 0
    logs = -np.logaddexp(0, -scores)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
