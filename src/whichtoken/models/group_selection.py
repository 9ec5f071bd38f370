"""What a group transformer has selected: accuracy alone does not certify that it attends to the relevant group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from whichtoken.models.group_transformer import GroupTransformer
from whichtoken.theory.group_sparse import positional_block


@dataclass(frozen=True)
class GroupSelection:
    """State of a group transformer on a sample; cosines are nan while their vector is zero."""

    loss: float
    accuracy: float
    attention: float  # mean weight on the relevant group
    min_attention: float
    value_norm: float  # |v_1|
    value_cosine: float  # of v_1 with the true direction
    position_value_norm: float  # |v_2|, zero in theory
    block_norms: tuple[float, float, float, float]  # Frobenius norms of W_11, W_12, W_21, W_22
    position_cosine: float  # of W_22 with its predicted direction


@torch.no_grad()
def selection(model: GroupTransformer, X: Tensor, y: Tensor, relevant: int, direction: ArrayLike) -> GroupSelection:
    """Measure what `model` selects on X (batch, groups, group_dim) with labels y (batch,)."""
    v_1, v_2 = model.value_blocks()
    received = model.attention(X)[:, relevant]  # (batch, groups)
    blocks = model.blocks()
    predicted = positional_block(model.encodings.numpy(), relevant, gap=1.0)
    return GroupSelection(
        loss=float(model.loss(X, y)),
        accuracy=float((y * model(X) > 0).double().mean()),
        attention=float(received.mean()),
        min_attention=float(received.min()),
        value_norm=float(v_1.norm()),
        value_cosine=_cosine(v_1.numpy(), np.asarray(direction)),
        position_value_norm=float(v_2.norm()),
        block_norms=(
            float(blocks[0].norm()),
            float(blocks[1].norm()),
            float(blocks[2].norm()),
            float(blocks[3].norm()),
        ),
        position_cosine=_cosine(blocks[3].numpy(), predicted),
    )


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.sum(a * b) / lengths) if lengths else float("nan")
