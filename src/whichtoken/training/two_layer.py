"""Train two-layer attention on token counts with AdamW; rows outside a batch are moved ahead as in the one-layer engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.models.two_layer_attention import TwoLayerAttention
from whichtoken.training.cls_adamw import Moments, Rows, skip, update_vector
from whichtoken.training.cls_training import ClsAdamW, checked_guards, training_documents
from whichtoken.training.loop import History, Safeguards, train_by_epochs
from whichtoken.training.missed_steps import Rule, fill_table
from whichtoken.training.plan import TrainingPlan


def train_two_layer(
    model: TwoLayerAttention,
    counts: Any,
    labels: Any,
    plan: TrainingPlan,
    rng: np.random.Generator,
    *,
    guards: Safeguards | None = None,
) -> History:
    """Train `model` in place with AdamW.

    Parameters
    ----------
    model, counts, labels, plan, rng, guards : as in `train_cls`
        The model, the documents, and how to train.

    Returns
    -------
    History
        Losses, epoch by epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.models import TwoLayerAttention
    >>> from whichtoken.training import TrainingPlan, train_two_layer
    >>> rng = np.random.default_rng(0)
    >>> model = TwoLayerAttention.start(vocabulary=3, dim=8, rng=rng)
    >>> history = train_two_layer(model, [[1, 0, 1], [0, 1, 1]], [1, -1], TrainingPlan(epochs=20, drops=()), rng)
    >>> history.losses[-1] < history.losses[0]
    True
    """
    if plan.optimizer != "adamw":
        raise ValueError(f"optimizer={plan.optimizer!r} must be adamw for two layers")
    documents, signs = training_documents(model, TwoLayerAttention, counts, labels)
    guards = checked_guards(guards or Safeguards(), len(model.embeddings))
    return train_by_epochs(TwoLayerAdamW(model, documents, signs, plan), documents, signs, plan, rng, guards)


class TwoLayerAdamW(ClsAdamW):
    """The same state as for one layer; the gradient of a row is no longer of rank two, so it comes in a buffer."""

    model: TwoLayerAttention

    def __init__(
        self, model: TwoLayerAttention, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan
    ) -> None:
        super().__init__(model, counts, labels, plan)
        self.counts = counts

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        schedule, rule = self._next_steps(order, lr)
        embeddings, cls, value = self.moments
        steps = len(rule.sizes)
        table = np.empty((steps + 1, 7))
        skip_first_steps(embeddings, schedule.before, table, rule)
        loss = 0.0
        for step in range(steps):
            batch = order[schedule.starts[step] : schedule.starts[step + 1]]
            gradient = self.model.gradient(self.counts[batch], self.documents.labels[batch])
            part = slice(schedule.bounds[step], schedule.bounds[step + 1])
            # the gradient's tokens are those of the schedule, ascending in both
            step_rows(embeddings, gradient.tokens, schedule.missed[part], gradient.rows, table, rule, step)
            update_vector(*cls, gradient.cls[None], rule, step)
            if self.plan.train_value:
                update_vector(*value, gradient.value[None], rule, step)
            loss += gradient.loss
        return loss / steps


@njit(cache=True, nogil=True)
def skip_first_steps(embeddings: Moments, before: NDArray[np.int32], table: NDArray[np.float64], rule: Rule) -> None:
    """Move every row ahead to the batch that first touches it."""
    fill_table(table, rule, -1, len(rule.sizes), False)
    for token in range(len(before)):
        if before[token]:
            skip(
                embeddings.parameter[token], embeddings.mean[token], embeddings.square[token],
                table, rule, -1, before[token],
            )  # fmt: skip


@njit(cache=True, nogil=True)
def step_rows(
    embeddings: Moments,
    tokens: NDArray[np.int32],
    missed: NDArray[np.int32],
    gradients: Rows,
    table: NDArray[np.float64],
    rule: Rule,
    step: int,
) -> None:
    """AdamW on the rows of `tokens` with `gradients` (touched, d), then the steps that each misses."""
    longest = 0
    for count in missed:
        longest = max(longest, count)
    fill_table(table, rule, step, longest, False)
    for k in range(len(tokens)):
        row, mean = embeddings.parameter[tokens[k]], embeddings.mean[tokens[k]]
        square = embeddings.square[tokens[k]]
        update_vector(row, mean, square, gradients[k : k + 1], rule, step)
        if missed[k]:
            skip(row, mean, square, table, rule, step, missed[k])
