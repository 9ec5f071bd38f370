"""AdamW for `<cls>` attention on counts: one pass over the touched rows per step, torch's trajectory to rounding.

The gradient of E has rank two, so it is formed in registers; the scores that the next step needs are summed while the row is
at hand. A row that the next batches do not touch is moved ahead, in the same pass, by all the steps until it is touched
again (`missed_steps`): rows outside the batch cost no memory traffic, and every row is up to date when an epoch ends.
Sums over rows run in fixed blocks, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from whichtoken.models.cls_kernels import add_gradient
from whichtoken.training.batch_schedule import Schedule
from whichtoken.training.missed_steps import (
    DECAY,
    MOMENTUM,
    NODE_1,
    NODE_2,
    VARIANCE,
    WEIGHT_1,
    WEIGHT_2,
    Rule,
    fill_table,
)

Floats = NDArray[np.float64]
Rows = NDArray[Any]  # (vocabulary, d) or (d,), float32 or float64

BLOCKS = 16  # partial sums over rows, whatever the number of threads
# sums may be reordered and multiplications fused with additions; no approximate division or root
RELAXED = {"reassoc", "contract", "nsz"}


class Moments(NamedTuple):
    """A parameter with AdamW's two running means of its gradient."""

    parameter: Rows
    mean: Rows
    square: Rows


class CountedDocuments(NamedTuple):
    """Token counts as CSR, with labels."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    counts: NDArray[np.int32]
    labels: NDArray[np.int8]


@njit(cache=True, nogil=True)
def adamw_epoch(
    documents: CountedDocuments,
    schedule: Schedule,
    rule: Rule,
    embeddings: Moments,
    cls: Moments,
    value: Moments,
    train_value: bool,
) -> float:
    """Update the parameters on every batch of the schedule; return the mean of the losses before each update.

    Parameters
    ----------
    embeddings : three arrays (vocabulary, d).
    cls, value : three arrays (d,) each; `value` stays as it is unless `train_value`.
    """
    E, p, v = embeddings.parameter, cls.parameter, value.parameter
    vocabulary, d = E.shape
    scores, values, weights, shares, along_value, along_cls = np.zeros((6, vocabulary))
    table = np.empty((len(rule.sizes) + 1, 7))
    partial_p, partial_v = np.empty((BLOCKS, d), dtype=E.dtype), np.empty((BLOCKS, d), dtype=E.dtype)
    old_p, old_v = np.empty_like(p), np.empty_like(v)
    fill_table(table, rule, -1, len(rule.sizes), False)
    _skip_rows(embeddings, schedule.before, table, rule)
    loss = 0.0
    for step in range(len(rule.sizes)):
        first, last = schedule.bounds[step], schedule.bounds[step + 1]
        tokens, missed = schedule.tokens[first:last], schedule.missed[first:last]
        _score_rows(E, tokens, schedule.unseen[first:last], p, v, scores, values)
        peak, longest = -np.inf, 0
        for k in range(len(tokens)):
            peak = max(peak, scores[tokens[k]])
            longest = max(longest, missed[k])
        for token in tokens:
            weights[token] = math.exp(scores[token] - peak)
            along_value[token] = along_cls[token] = 0.0
        loss += add_gradient(
            documents.indptr, documents.indices, documents.counts, documents.labels,
            schedule.order[schedule.starts[step] : schedule.starts[step + 1]],
            weights, scores, values, along_value, along_cls, shares,
        )  # fmt: skip
        _combine(E, tokens, along_cls, along_value, partial_p, partial_v, train_value)
        old_p[:], old_v[:] = p, v
        update_vector(cls.parameter, cls.mean, cls.square, partial_p, rule, step)
        if train_value:
            update_vector(value.parameter, value.mean, value.square, partial_v, rule, step)
        fill_table(table, rule, step, longest, True)
        update_rows(
            embeddings, tokens, missed, along_value, along_cls, old_v, old_p, v, p, table, rule, step, scores, values
        )
    return loss / len(rule.sizes)


@njit(cache=True, nogil=True, parallel=True)
def _skip_rows(embeddings: Moments, before: NDArray[np.int32], table: Floats, rule: Rule) -> None:
    for token in prange(len(before)):
        if before[token]:
            skip(
                embeddings.parameter[token], embeddings.mean[token], embeddings.square[token],
                table, rule, -1, before[token],
            )  # fmt: skip


@njit(cache=True, nogil=True, parallel=True)
def _score_rows(
    E: Rows, tokens: NDArray[np.int32], unseen: NDArray[np.bool_], p: Rows, v: Rows, scores: Floats, values: Floats
) -> None:
    for k in prange(len(tokens)):
        if unseen[k]:
            scores[tokens[k]], values[tokens[k]] = two_products(E[tokens[k]], p, v)


@njit(cache=True, nogil=True, parallel=True)
def _combine(
    E: Rows,
    tokens: NDArray[np.int32],
    along_cls: Floats,
    along_value: Floats,
    partial_p: Rows,
    partial_v: Rows,
    both: bool,
) -> None:
    for block in prange(BLOCKS):
        partial_p[block] = 0
        partial_v[block] = 0
        last = (block + 1) * len(tokens) // BLOCKS
        for start in range(block * len(tokens) // BLOCKS, last, 4):
            four = tokens[start : min(start + 4, last)]
            _add_rows(E, four, along_cls, partial_p[block])
            if both:  # while the rows are in the cache
                _add_rows(E, four, along_value, partial_v[block])


@njit(cache=True, nogil=True, parallel=True)
def update_rows(
    embeddings: Moments, tokens: NDArray[np.int32], missed: NDArray[np.int32], along_value: Floats, along_cls: Floats,
    old_v: Rows, old_p: Rows, v: Rows, p: Rows, table: Floats, rule: Rule, step: int, scores: Floats, values: Floats,
) -> None:  # fmt: skip
    """AdamW on the rows of `tokens` with the gradients A_s v + B_s p, and their `scores` and `values` after it."""
    for k in prange(len(tokens)):
        token = tokens[k]
        scores[token], values[token] = _update_row(
            embeddings.parameter[token], embeddings.mean[token], embeddings.square[token],
            along_value[token], along_cls[token], old_v, old_p, v, p, table, rule, step, missed[k],
        )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def two_products(row: Rows, p: Rows, v: Rows) -> tuple[float, float]:
    """Score row.p and value row.v."""
    zero = row.dtype.type(0)
    score, value = zero, zero
    for j in range(len(row)):
        score += row[j] * p[j]
        value += row[j] * v[j]
    return score, value


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def _add_rows(E: Rows, tokens: NDArray[np.int32], coefficients: Floats, out: Rows) -> None:
    """Add sum_k coefficients[token_k] E[token_k] to `out`; four rows together spare traffic to `out`."""
    number = E.dtype.type
    if len(tokens) == 4:
        r, s, t, u = E[tokens[0]], E[tokens[1]], E[tokens[2]], E[tokens[3]]
        a, b = number(coefficients[tokens[0]]), number(coefficients[tokens[1]])
        c, e = number(coefficients[tokens[2]]), number(coefficients[tokens[3]])
        for j in range(len(out)):
            out[j] += (a * r[j] + b * s[j]) + (c * t[j] + e * u[j])
        return
    for token in tokens:
        r, a = E[token], number(coefficients[token])
        for j in range(len(out)):
            out[j] += a * r[j]


@njit(cache=True, nogil=True, error_model="numpy")
def update_vector(parameter: Rows, mean: Rows, square: Rows, partial: Rows, rule: Rule, step: int) -> None:
    """AdamW on a vector whose gradient is the sum of `partial` over its rows."""
    for j in range(len(parameter)):
        gradient = 0.0
        for block in range(len(partial)):
            gradient += partial[block, j]
        mean[j] += (1 - rule.beta1) * (gradient - mean[j])
        square[j] = rule.beta2 * square[j] + (1 - rule.beta2) * gradient * gradient
        change = rule.sizes[step] * mean[j] / (math.sqrt(square[j]) * rule.spreads[step] + rule.eps)
        parameter[j] = rule.decay * parameter[j] - change


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def _update_row(
    row: Rows, mean: Rows, square: Rows, along_value: float, along_cls: float, old_v: Rows, old_p: Rows,
    v: Rows, p: Rows, table: Floats, rule: Rule, step: int, missed: int,
) -> tuple[float, float]:  # fmt: skip
    """AdamW on one row and the steps that it misses; its new scores, which only mean something if it misses none."""
    number = row.dtype.type
    A, B = number(along_value), number(along_cls)
    keep, new = number(rule.beta1), number(1 - rule.beta1)
    keep2, new2 = number(rule.beta2), number(1 - rule.beta2)
    decay, eps = number(rule.decay), number(rule.eps)
    size, spread = number(rule.sizes[step]), number(rule.spreads[step])
    score, value = number(0), number(0)
    if missed and step >= rule.quadrature_from:
        decay = number(table[missed, DECAY])
        w1, s1 = number(table[missed, WEIGHT_1]), number(table[missed, NODE_1])
        w2, s2 = number(table[missed, WEIGHT_2]), number(table[missed, NODE_2])
        fade, fade2 = number(table[missed, MOMENTUM]), number(table[missed, VARIANCE])
        for j in range(len(row)):
            gradient = A * old_v[j] + B * old_p[j]
            m = keep * mean[j] + new * gradient
            u = keep2 * square[j] + new2 * gradient * gradient
            root = math.sqrt(u)
            x1, x2 = s1 * root + eps, s2 * root + eps
            row[j] = decay * row[j] - m * ((w1 * x2 + w2 * x1) / (x1 * x2))  # w1/x1 + w2/x2 with one division
            mean[j] = fade * m
            square[j] = fade2 * u
        return score, value
    for j in range(len(row)):
        gradient = A * old_v[j] + B * old_p[j]
        m = keep * mean[j] + new * gradient
        u = keep2 * square[j] + new2 * gradient * gradient
        changed = decay * row[j] - size * m / (math.sqrt(u) * spread + eps)
        row[j], mean[j], square[j] = changed, m, u
        score += changed * p[j]
        value += changed * v[j]
    if missed:
        _replay(row, mean, square, rule, step, missed)
    return score, value


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def skip(row: Rows, mean: Rows, square: Rows, table: Floats, rule: Rule, step: int, missed: int) -> None:
    """The steps after `step`, without gradient; `table` is filled for them alone."""
    number = row.dtype.type
    if step + 1 < rule.quadrature_from:
        _replay(row, mean, square, rule, step, missed)
        return
    decay, eps = number(table[missed, DECAY]), number(rule.eps)
    w1, s1 = number(table[missed, WEIGHT_1]), number(table[missed, NODE_1])
    w2, s2 = number(table[missed, WEIGHT_2]), number(table[missed, NODE_2])
    fade, fade2 = number(table[missed, MOMENTUM]), number(table[missed, VARIANCE])
    for j in range(len(row)):
        root = math.sqrt(square[j])
        x1, x2 = s1 * root + eps, s2 * root + eps
        row[j] = decay * row[j] - mean[j] * ((w1 * x2 + w2 * x1) / (x1 * x2))
        mean[j] *= fade
        square[j] *= fade2


@njit(cache=True, nogil=True, error_model="numpy", fastmath=RELAXED, forceinline=True)
def _replay(row: Rows, mean: Rows, square: Rows, rule: Rule, step: int, missed: int) -> None:
    """The steps after `step` that have no gradient, one by one."""
    number = row.dtype.type
    keep, keep2, decay, eps = number(rule.beta1), number(rule.beta2), number(rule.decay), number(rule.eps)
    for t in range(step + 1, step + 1 + missed):
        size, spread = number(rule.sizes[t]), number(rule.spreads[t])
        for j in range(len(row)):
            mean[j] *= keep
            square[j] *= keep2
            row[j] = decay * row[j] - size * mean[j] / (math.sqrt(square[j]) * spread + eps)
