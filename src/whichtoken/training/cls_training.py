"""Train `<cls>` attention on token counts: full-batch gradient descent, SGD, or AdamW."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.memory import require_memory
from whichtoken.models.cls_attention import ClsAttention
from whichtoken.models.cls_model import ClsModel, binary_labels, count_matrix
from whichtoken.threads import check_openmp
from whichtoken.training.batch_schedule import Schedule, batch_schedule
from whichtoken.training.cls_adamw import CountedDocuments, Moments, adamw_epoch
from whichtoken.training.cls_sgd import sgd_epoch
from whichtoken.training.loop import History, Safeguards, train_by_epochs
from whichtoken.training.missed_steps import Rule, adamw_rule
from whichtoken.training.plan import TrainingPlan

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
        Optimiser, learning rate, epochs, batches.
    rng : numpy.random.Generator
        Orders the documents.
    threads : int, optional
        For AdamW; by default as many as the machine has cores free of other work.
    guards : Safeguards, optional
        Held-out data, early stopping, checkpoints.

    Returns
    -------
    History
        Losses, epoch by epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.training import TrainingPlan, start_cls, train_cls
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
    guards = checked_guards(guards or Safeguards(), len(model.embeddings))
    engine = (
        ClsAdamW(model, documents, signs, plan) if plan.optimizer == "adamw" else ClsSGD(model, documents, signs, plan)
    )
    with _threads(threads, model.embeddings.size):
        return train_by_epochs(engine, documents, signs, plan, rng, guards)


def memory_needed(vocabulary: int, dim: int, *, optimizer: str = "adamw", dtype: type = np.float32) -> int:
    """Bytes of the embeddings and of the optimiser's running means; the rest is small beside them."""
    return (3 if optimizer == "adamw" else 1) * vocabulary * dim * np.dtype(dtype).itemsize


def start_cls(
    vocabulary: int, dim: int, rng: np.random.Generator, *, optimizer: str = "adamw", dtype: type = np.float32
) -> ClsAttention:
    """`ClsAttention.start`, after a check that the model and its training fit into memory.

    Parameters
    ----------
    vocabulary, dim : int
        |S| and d.
    rng : numpy.random.Generator
        Source of the random start.
    optimizer : str, default="adamw"
        Optimiser of the training to come, whose memory counts too.
    dtype : type, default=float32
        Type of the parameters, float32 or float64.

    Returns
    -------
    ClsAttention
        The paper's start.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.training import start_cls
    >>> start_cls(vocabulary=50, dim=16, rng=np.random.default_rng(0)).embeddings.shape
    (50, 16)
    """
    needed = memory_needed(vocabulary, dim, optimizer=optimizer, dtype=dtype)
    what = f"training {vocabulary} embeddings of dim={dim} with {optimizer}"
    require_memory(needed, what, "lower dim or the vocabulary")
    return ClsAttention.start(vocabulary, dim, rng, dtype)


class _ClsEngine:
    """What both ways of training share."""

    def __init__(self, model: ClsModel, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan) -> None:
        self.model, self.plan = model, plan
        self.documents = CountedDocuments(counts.indptr, counts.indices, counts.data, labels)

    def decision(self, counts: csr_array) -> NDArray[np.float64]:
        return self.model.decision(counts)

    @property
    def parameters(self) -> Mapping[str, NDArray[Any]]:
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
        return float(adamw_epoch(self.documents, schedule, rule, embeddings, cls, value, self.plan.train_value))

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
        return {**self.parameters, **moments, "steps": self.steps}


class ClsSGD(_ClsEngine):
    """Plain gradient descent on batches, or on all documents at once."""

    def __init__(self, model: ClsAttention, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan) -> None:
        super().__init__(model, counts, labels, plan)
        self.batch = counts.shape[0] if plan.optimizer == "gd" else plan.batch_size

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        model, documents = self.model, self.documents
        schedule = batch_schedule(documents.indptr, documents.indices, len(model.embeddings), order, self.batch)
        return float(
            sgd_epoch(documents, schedule, model.embeddings, model.cls, model.value, lr, self.plan.train_value)
        )

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        return self.parameters


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


def checked_guards(guards: Safeguards, vocabulary: int) -> Safeguards:
    """Held-out documents in the form of the kernels, checked before training starts."""
    if guards.held_out is None:
        return guards
    counts = count_matrix(guards.held_out[0], vocabulary)
    return replace(guards, held_out=(counts, binary_labels(guards.held_out[1], counts.shape[0])))


@contextmanager
def _threads(wanted: int | None, size: int) -> Iterator[None]:
    """Run numba on `wanted` threads, or on one for each core that has nothing else to do."""
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if wanted is not None and wanted < 1:
        raise ValueError(f"threads={wanted} must be at least 1")
    idle = most - round(os.getloadavg()[0])  # a thread that waits for a preempted partner is slower than none
    before = numba.get_num_threads()
    numba.set_num_threads(min(most, wanted or (max(1, idle) if size >= WORTH_A_THREAD else 1)))
    try:
        yield
    finally:
        numba.set_num_threads(before)
