"""Train `<cls>` attention on token counts: full-batch gradient descent, SGD, or AdamW.

AdamW is the update of torch.optim.AdamW on every embedding in every step, but a step touches only the tokens of its batch.
The steps that a token misses have no gradient: they are replayed one by one, or summed by a quadrature of two nodes where
that is as precise as float32 (`fill_table`). E, p and v are the embeddings, the query and the readout; the gradient of E_s is
A_s v + B_s p (`cls_model`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.checks import check_count
from whichtoken.machine import require_memory
from whichtoken.theory.trained_embeddings.cls_model import (
    ClsAttention,
    ClsModel,
    add_gradient,
    binary_labels,
    count_matrix,
)
from whichtoken.theory.trained_embeddings.training_loop import History, Safeguards, TrainingPlan, train_by_epochs
from whichtoken.threads import check_openmp

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Longs = NDArray[np.int64]
Rows = NDArray[Any]  # (vocabulary, d) or (d,), float32 or float64
# Before this step the bias correction moves r_i too fast for two nodes: 4e-8 relative at 600, but 1e-6 at 200 and 6e-3 at 5.
QUADRATURE_FROM = 600
# Longer momentum or a faster fading variance spreads the s_i too far: 2e-5 at betas (0.9, 0.99), 6e-5 at (0.99, 0.999).
LONGEST_MOMENTUM, FASTEST_VARIANCE = 0.9, 0.999
DECAY, WEIGHT_1, NODE_1, WEIGHT_2, NODE_2, MOMENTUM, VARIANCE = range(7)  # columns of a table
BLOCKS = 16  # partial sums over rows, whatever the number of threads
# sums may be reordered and multiplications fused with additions; no approximate division or root
RELAXED = {"reassoc", "contract", "nsz"}
WORTH_A_THREAD = 1 << 19  # coordinates below which a second thread costs more than it gives


def train_cls(
    model: ClsAttention,
    counts: Any,
    labels: Any,
    plan: TrainingPlan,
    rng: np.random.Generator,
    *,
    threads: int | None = None,
    guards: Safeguards | None = None,
) -> History:
    """Train `model` in place.

    Batches are random, drawn anew in every epoch. The numbers do not depend on the number of threads.

    Parameters
    ----------
    model : ClsAttention
        Trained in place.
    counts : sparse or dense, shape (n, vocabulary)
        How often each token occurs in each document.
    labels : array_like of shape (n,)
        -1 or +1.
    plan : TrainingPlan
        Optimizer, learning rate, epochs, batches.
    rng : numpy.random.Generator
        Orders the documents.
    threads : int, optional
        For AdamW; by default as many as the machine has cores free of other work.
    guards : Safeguards, optional
        Held-out data, checkpoints.

    Returns
    -------
    History
        Losses, epoch by epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import TrainingPlan, start_cls, train_cls
    >>> rng = np.random.default_rng(0)
    >>> model = start_cls(vocabulary=3, dim=16, rng=rng)
    >>> plan = TrainingPlan(optimizer="gd", lr=1.0, epochs=20, drops=())
    >>> history = train_cls(model, [[1, 0, 1], [0, 1, 1]], [1, -1], plan, rng)
    >>> len(history.losses), history.losses[-1] < history.losses[0]
    (20, True)
    """
    if plan.optimizer == "adamw":
        check_openmp()
    documents, signs = training_documents(model, ClsAttention, counts, labels)
    guards = check_guards(guards or Safeguards(), len(model.embeddings))
    if plan.optimizer != "adamw" and model.logit_scale != 1:
        raise ValueError(f"optimizer={plan.optimizer!r} must be adamw where logit_scale={model.logit_scale} is not 1")
    engine = (ClsAdamW if plan.optimizer == "adamw" else ClsSGD)(model, documents, signs, plan)
    with _threads(threads, model.embeddings.size):
        return train_by_epochs(engine, documents, signs, plan, rng, guards)


def start_cls(
    vocabulary: int,
    dim: int,
    rng: np.random.Generator,
    *,
    optimizer: str = "adamw",
    dtype: type = np.float32,
    logit_scale: float = 1.0,
) -> ClsAttention:
    """`ClsAttention.start`, after a check that the model and its training fit into memory.

    Parameters
    ----------
    vocabulary, dim : int
        |S| and d.
    rng : numpy.random.Generator
        Source of the random start.
    optimizer : str, default="adamw"
        Optimizer of the training to come, whose memory counts too.
    dtype : type, default=float32
        Type of the parameters, float32 or float64.
    logit_scale : float, default=1.0
        Of the model.

    Returns
    -------
    ClsAttention
        The paper's start.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import start_cls
    >>> start_cls(vocabulary=50, dim=16, rng=np.random.default_rng(0)).embeddings.shape
    (50, 16)
    """
    needed = memory_needed(vocabulary, dim, optimizer=optimizer, dtype=dtype)
    what = f"training {vocabulary} embeddings of dim={dim} with {optimizer}"
    require_memory(needed, what, "lower dim or the vocabulary")
    return ClsAttention.start(vocabulary, dim, rng, dtype, logit_scale)


def memory_needed(vocabulary: int, dim: int, *, optimizer: str = "adamw", dtype: type = np.float32) -> int:
    """Bytes of the embeddings and of the optimizer's running means; the rest is small beside them."""
    return (3 if optimizer == "adamw" else 1) * vocabulary * dim * np.dtype(dtype).itemsize


def training_documents(
    model: ClsModel, kind: type[ClsModel], counts: Any, labels: Any
) -> tuple[csr_array, NDArray[np.int8]]:
    """Counts and labels in the form of the kernels, for a model of the `kind` that the engine knows."""
    if not isinstance(model, kind):
        raise ValueError(
            f"model of type {type(model).__name__} must be {kind.__name__}; "
            "train_cls trains ClsAttention, train_two_layer trains TwoLayerAttention"
        )
    documents = count_matrix(counts, len(model.embeddings))
    signs = binary_labels(labels, documents.shape[0])
    if not len(signs):
        raise ValueError("counts have no documents to train on")
    return documents, signs


def check_guards(guards: Safeguards, vocabulary: int) -> Safeguards:
    """Held-out documents in the form of the kernels, checked before training starts."""
    if guards.held_out is None:
        return guards
    counts = count_matrix(guards.held_out[0], vocabulary)
    return replace(guards, held_out=(counts, binary_labels(guards.held_out[1], counts.shape[0])))


@contextmanager
def _threads(wanted: int | None, size: int) -> Iterator[None]:
    """Run numba on `wanted` threads, or on one for each core that has nothing else to do."""
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if wanted is not None:
        check_count("threads", wanted, 1)
    idle = most - round(os.getloadavg()[0])  # a thread that waits for a preempted partner is slower than none
    before = numba.get_num_threads()
    numba.set_num_threads(min(most, wanted or (max(1, idle) if size >= WORTH_A_THREAD else 1)))
    try:
        yield
    finally:
        numba.set_num_threads(before)


class _ClsEngine:
    """What both ways of training share."""

    def __init__(self, model: ClsModel, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan) -> None:
        self.model, self.counts, self.plan = model, counts, plan
        self.documents = CountedDocuments(counts.indptr, counts.indices, counts.data, labels)

    def decision(self, counts: csr_array) -> NDArray[np.float64]:
        return self.model.decision(counts)

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        return {"embeddings": self.model.embeddings, "cls": self.model.cls, "value": self.model.value}


class ClsAdamW(_ClsEngine):
    """AdamW, one fused pass per step."""

    def __init__(self, model: ClsModel, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan) -> None:
        super().__init__(model, counts, labels, plan)
        needed = 2 * model.embeddings.nbytes
        require_memory(needed, f"AdamW's state for embeddings {model.embeddings.shape}", "lower dim or the vocabulary")
        self.moments = [
            Moments(array, np.zeros_like(array), np.zeros_like(array))
            for array in (model.embeddings, model.cls, model.value)
        ]
        self.steps = np.zeros(1, dtype=np.int64)

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        schedule, rule = self._next_steps(order, lr)
        embeddings, cls, value = self.moments
        scale = self.model.cls.dtype.type(self.model.logit_scale)
        return float(adamw_epoch(self.documents, schedule, rule, embeddings, cls, value, self.plan.train_value, scale))

    def _next_steps(self, order: NDArray[np.int64], lr: float) -> tuple[Schedule, Rule]:
        """The batches of the next epoch and AdamW's constants for them; counts their steps."""
        plan, documents = self.plan, self.documents
        schedule = batch_schedule(
            documents.indptr, documents.indices, len(self.model.embeddings), order, plan.batch_size
        )
        steps = len(schedule.starts) - 1
        rule = adamw_rule(
            int(self.steps[0]), steps, lr, plan.weight_decay, plan.betas, plan.eps, self.model.cls.dtype.type
        )
        self.steps += steps
        return schedule, rule

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        names = zip(("embeddings", "cls", "value"), self.moments, strict=True)
        moments = {f"{name}.{kind}": getattr(of, kind) for name, of in names for kind in ("mean", "square")}
        return {**super().state, **moments, "steps": self.steps}


class ClsSGD(_ClsEngine):
    """Plain gradient descent on batches, or on all documents at once."""

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        model, documents, plan = self.model, self.documents, self.plan
        batch = self.counts.shape[0] if plan.optimizer == "gd" else plan.batch_size
        schedule = batch_schedule(documents.indptr, documents.indices, len(model.embeddings), order, batch)
        return float(sgd_epoch(documents, schedule, model.embeddings, model.cls, model.value, lr, plan.train_value))


class Rule(NamedTuple):
    """The constants of AdamW during one epoch, as torch.optim.AdamW defines them."""

    decay: float  # 1 - lr * weight_decay
    beta1: float
    beta2: float
    eps: float
    sizes: Floats  # (steps,) lr / (1 - beta1^t)
    spreads: Floats  # (steps,) 1 / sqrt(1 - beta2^t)
    quadrature_from: int  # step of the epoch from which missed steps are summed by quadrature


def adamw_rule(
    done: int, steps: int, lr: float, weight_decay: float, betas: tuple[float, float], eps: float, dtype: type
) -> Rule:
    """Constants for the next `steps` steps after `done` steps of the run.

    Every missed step is replayed where two nodes do not reach the precision of `dtype`: in float64, and for unusual betas.
    """
    t = np.arange(done + 1, done + steps + 1, dtype=np.float64)
    precise = dtype == np.float32 and betas[0] <= LONGEST_MOMENTUM and betas[1] >= FASTEST_VARIANCE
    first = max(QUADRATURE_FROM - done, 0) if precise else steps
    sizes, spreads = lr / (1 - betas[0] ** t), 1 / np.sqrt(1 - betas[1] ** t)
    return Rule(1 - lr * weight_decay, betas[0], betas[1], eps, sizes, spreads, first)


@njit(cache=True, nogil=True)
def fill_table(table: Floats, rule: Rule, step: int, missed: int, own: bool) -> None:
    """Row k of `table`: the k steps after `step`, which have no gradient, as two nodes; k = 0, ..., `missed`.

    With `own` the step itself, which has one, is the first of the sum. `step = -1` stands for the start of an epoch.
    """
    reference = rule.spreads[max(step, 0)]
    m0 = m1 = m2 = m3 = 0.0  # moments of the measure in x = s - reference, so that nothing cancels
    decay = momentum = variance = 1.0
    for k in range(missed + 1):
        if k > 0:
            momentum *= rule.beta1
            variance *= rule.beta2
        if k > 0 or own:
            weight = rule.sizes[step + k] * momentum
            x = rule.spreads[step + k] * math.sqrt(variance) - reference
            decay *= rule.decay
            m0 = rule.decay * m0 + weight
            m1 = rule.decay * m1 + weight * x
            m2 = rule.decay * m2 + weight * x * x
            m3 = rule.decay * m3 + weight * x * x * x
        table[k, DECAY], table[k, MOMENTUM], table[k, VARIANCE] = decay, momentum, variance
        table[k, WEIGHT_1], table[k, NODE_1] = m0, reference + (m1 / m0 if m0 else 0.0)
        table[k, WEIGHT_2], table[k, NODE_2] = 0.0, reference
        determinant = m0 * m2 - m1 * m1
        if determinant > 1e-14 * m0 * m2:  # otherwise one node says it all
            # nodes are the roots of x^2 - b x - c, orthogonal to 1 and x
            b = (m0 * m3 - m1 * m2) / determinant
            c = (m2 * m2 - m1 * m3) / determinant
            half = math.sqrt(0.25 * b * b + c)
            low, high = 0.5 * b - half, 0.5 * b + half
            table[k, NODE_1], table[k, NODE_2] = reference + low, reference + high
            table[k, WEIGHT_1] = (high * m0 - m1) / (high - low)
            table[k, WEIGHT_2] = (m1 - low * m0) / (high - low)


class Schedule(NamedTuple):
    """The batches of one epoch and the tokens they touch; entries of batch t are `bounds[t]:bounds[t + 1]`."""

    order: NDArray[np.int64]  # (documents,) batch t is order[starts[t]:starts[t + 1]]
    starts: NDArray[np.int64]  # (steps + 1,)
    bounds: NDArray[np.int64]  # (steps + 1,)
    tokens: Integers  # (entries,) distinct tokens of a batch, ascending: neighbors in memory are visited in a row
    missed: Integers  # (entries,) steps until the token is touched again, or until the epoch ends
    unseen: NDArray[np.bool_]  # (entries,) the batch before did not touch it
    before: Integers  # (vocabulary,) steps before the first touch


def batch_schedule(
    indptr: Integers, indices: Integers, vocabulary: int, order: NDArray[np.int64], batch_size: int
) -> Schedule:
    """The schedule of one pass over the documents in `order`, `batch_size` at a time."""
    starts = np.append(np.arange(0, len(order), batch_size), len(order))
    steps = len(starts) - 1
    tokens = np.empty(min(int(indptr[-1]), steps * vocabulary), dtype=np.int32)
    missed, unseen = np.empty_like(tokens), np.empty(len(tokens), dtype=np.bool_)
    bounds, before = np.zeros(steps + 1, dtype=np.int64), np.full(vocabulary, steps, dtype=np.int32)
    entries = _touches(indptr, indices, order, starts, tokens, bounds, np.full(vocabulary, -1))
    for first, last in pairwise(bounds):
        tokens[first:last].sort()
    _gaps(tokens, bounds, missed, unseen, before)
    return Schedule(order, starts, bounds, tokens[:entries], missed[:entries], unseen[:entries], before)


@njit(cache=True, nogil=True)
def _touches(
    indptr: Integers, indices: Integers, order: Longs, starts: Longs, tokens: Integers, bounds: Longs, last: Longs
) -> int:
    entry = 0
    for step in range(len(starts) - 1):
        for row in order[starts[step] : starts[step + 1]]:
            for token in indices[indptr[row] : indptr[row + 1]]:
                if last[token] != step:
                    tokens[entry] = token
                    last[token] = step
                    entry += 1
        bounds[step + 1] = entry
    return entry


@njit(cache=True, nogil=True)
def _gaps(tokens: Integers, bounds: Longs, missed: Integers, unseen: NDArray[np.bool_], following: Integers) -> None:
    """Fill `missed` walking backwards and `unseen` forwards; `following` ends as the step of the first touch."""
    for step in range(len(bounds) - 2, -1, -1):
        for entry in range(bounds[step], bounds[step + 1]):
            missed[entry] = following[tokens[entry]] - step - 1
            following[tokens[entry]] = step
    fresh = np.zeros(len(following), dtype=np.bool_)  # touched by the batch before
    for entry in range(bounds[-1]):
        unseen[entry] = not fresh[tokens[entry]]
        fresh[tokens[entry]] = missed[entry] == 0


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
    documents: CountedDocuments, schedule: Schedule, rule: Rule, embeddings: Moments, cls: Moments, value: Moments,
    train_value: bool, scale: float,
) -> float:  # fmt: skip
    """Update the parameters on every batch of the schedule; return the mean of the losses before each update.

    Parameters
    ----------
    embeddings : three arrays (vocabulary, d).
    cls, value : three arrays (d,) each; `value` stays as it is unless `train_value`.
    scale : of the scores in front of the softmax; p below is the query times this.
    """
    E, p, v = embeddings.parameter, scale * cls.parameter, value.parameter
    vocabulary, d = E.shape
    scores, values, weights, shares, along_value, along_cls = np.zeros((6, vocabulary))
    table = np.empty((len(rule.sizes) + 1, 7))
    partial_p, partial_v = np.empty((BLOCKS, d), dtype=E.dtype), np.empty((BLOCKS, d), dtype=E.dtype)
    old_p, old_v = np.empty_like(p), np.empty_like(v)
    fill_table(table, rule, -1, len(rule.sizes), False)
    skip_rows(embeddings, schedule.before, table, rule)
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
        update_vector(cls.parameter, cls.mean, cls.square, scale * partial_p, rule, step)
        p[:] = scale * cls.parameter
        if train_value:
            update_vector(value.parameter, value.mean, value.square, partial_v, rule, step)
        fill_table(table, rule, step, longest, True)
        update_rows(
            embeddings, tokens, missed, along_value, along_cls, old_v, old_p, v, p, table, rule, step, scores, values
        )
    return loss / len(rule.sizes)


@njit(cache=True, nogil=True, parallel=True)
def skip_rows(embeddings: Moments, before: NDArray[np.int32], table: Floats, rule: Rule) -> None:
    """Move every row ahead to the batch that first touches it."""
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
    E: Rows, tokens: Integers, along_cls: Floats, along_value: Floats, partial_p: Rows, partial_v: Rows, both: bool
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
