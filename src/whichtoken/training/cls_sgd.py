"""Gradient descent for `<cls>` attention on counts: rows of tokens that a batch does not hold do not move at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.models.cls_kernels import add_gradient
from whichtoken.training.batch_schedule import Schedule
from whichtoken.training.cls_adamw import RELAXED, CountedDocuments, two_products

Floats = NDArray[np.float64]
Rows = NDArray[Any]  # (vocabulary, d) or (d,), float32 or float64


@njit(cache=True, nogil=True)
def sgd_epoch(
    documents: CountedDocuments, schedule: Schedule, E: Rows, p: Rows, v: Rows, lr: float, train_value: bool
) -> float:
    """Update E, p and, if asked, v on every batch of the schedule; the mean of the losses before each update."""
    vocabulary, d = E.shape
    scores, values, weights, shares, along_value, along_cls = np.zeros((6, vocabulary))
    gradient_p, gradient_v = np.empty(d), np.empty(d)
    loss = 0.0
    steps = len(schedule.starts) - 1
    for step in range(steps):
        tokens = schedule.tokens[schedule.bounds[step] : schedule.bounds[step + 1]]
        peak = -np.inf
        for token in tokens:
            scores[token], values[token] = two_products(E[token], p, v)
            peak = max(peak, scores[token])
            along_value[token] = along_cls[token] = 0.0
        for token in tokens:
            weights[token] = np.exp(scores[token] - peak)
        loss += add_gradient(
            documents.indptr, documents.indices, documents.counts, documents.labels,
            schedule.order[schedule.starts[step] : schedule.starts[step + 1]],
            weights, scores, values, along_value, along_cls, shares,
        )  # fmt: skip
        gradient_p[:] = 0.0
        gradient_v[:] = 0.0
        for token in tokens:
            _move_row(E[token], p, v, along_value[token], along_cls[token], lr, gradient_p, gradient_v)
        for j in range(d):
            p[j] -= lr * gradient_p[j]
            if train_value:
                v[j] -= lr * gradient_v[j]
    return loss / steps


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def _move_row(
    row: Rows, p: Rows, v: Rows, along_value: float, along_cls: float, lr: float, gradient_p: Floats, gradient_v: Floats
) -> None:
    """Add the row's part to the gradients of p and v, then move it along its own."""
    number = row.dtype.type
    A, B = number(lr * along_value), number(lr * along_cls)
    for j in range(len(row)):
        gradient_p[j] += along_cls * row[j]
        gradient_v[j] += along_value * row[j]
        row[j] -= A * v[j] + B * p[j]
