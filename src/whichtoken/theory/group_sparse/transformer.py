"""The one-layer transformer whose attention learns which group of variables matters."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import softmax

from whichtoken.checks import check_count
from whichtoken.theory.group_sparse import positional_block
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.gradient import logistic_loss_and_gradient


class GroupTransformer(torch.nn.Module):
    """f(Z) = v^T Z S 1, S = softmax over keys of Z^T W Z, with tokens z_j = [x_j; p_j].

    The model of Zhang, Meng, Cao, arXiv 2504.08638: one merged key-query matrix W, a value vector v, a sum over the
    columns of S, everything zero at the start. In float64, because its claims are about directions.

    Parameters
    ----------
    group_dim : int
        d, variables per group.
    groups : int
        D >= 2.
    encoding : str or array of shape (groups, encoding_dim), default="sine"
        A family of `positional_encodings` that needs no random numbers, or the encodings themselves, row j for group j.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.group_sparse import GroupTransformer
    >>> model = GroupTransformer(group_dim=2, groups=4)
    >>> X = torch.randn(3, 4, 2, dtype=torch.float64)
    >>> model.attention(X)[0, :, 0].tolist()  # uniform at the start
    [0.25, 0.25, 0.25, 0.25]
    """

    encodings: Tensor

    def __init__(self, group_dim: int, groups: int, encoding: str | ArrayLike = "sine") -> None:
        super().__init__()
        check_count("group_dim", group_dim, 1)
        encodings = check_encodings(encoding, groups)
        width = group_dim + encodings.shape[1]
        self.group_dim = group_dim
        self.groups = groups
        self.register_buffer("encodings", encodings)
        self.W = torch.nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
        self.v = torch.nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def forward(self, X: Tensor) -> Tensor:
        """Scores (batch,) of X (batch, groups, group_dim)."""
        v_1, v_2 = self.value_blocks()
        received = self.attention(X).sum(dim=2)  # (batch, groups)
        return torch.sum(received * (X @ v_1 + self.encodings @ v_2), dim=1)

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss, whose gradient comes from one compiled pass over the batch instead of a graph.

        X (n, groups, group_dim), y (n,) of -1 and +1, n >= 1.
        """
        if X.ndim != 3 or X.shape[1:] != (self.groups, self.group_dim) or not len(X) or y.shape != X.shape[:1]:
            expected = f"(n, {self.groups}, {self.group_dim}) and (n,) with n >= 1"
            raise ValueError(f"X of shape {tuple(X.shape)} and y of shape {tuple(y.shape)} must be {expected}")
        if not bool((y.abs() == 1).all()):
            raise ValueError("y must be -1 or +1")
        return _ExactLogisticLoss.apply(self.W, self.v, X, y, self.encodings)  # type: ignore[no-any-return,no-untyped-call]

    def attention(self, X: Tensor) -> Tensor:
        """S of shape (batch, groups, groups): [b, i, j] is the weight of group i for query j, columns sum to one."""
        W_11, W_12, W_21, W_22 = self.blocks()
        P = self.encodings
        content_queries = X @ W_11.T + P @ W_12.T  # (batch, groups, d)
        scores = X @ content_queries.mT + (P @ W_21) @ X.mT + P @ W_22 @ P.T  # (batch, groups, groups)
        return softmax(scores, dim=1)

    def features(self, X: Tensor) -> Tensor:
        """Z S 1 of shape (batch, group_dim + encoding_dim): what the value vector reads."""
        received = self.attention(X).sum(dim=2)
        return torch.cat([torch.einsum("bi,bid->bd", received, X), received @ self.encodings], dim=1)

    def blocks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W_11 (feature-feature), W_12, W_21 and W_22 (position-position)."""
        d = self.group_dim
        return self.W[:d, :d], self.W[:d, d:], self.W[d:, :d], self.W[d:, d:]

    def value_blocks(self) -> tuple[Tensor, Tensor]:
        """v_1 on the features and v_2 on the positions."""
        return self.v[: self.group_dim], self.v[self.group_dim :]


class _ExactLogisticLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, W: Tensor, v: Tensor, X: Tensor, y: Tensor, encodings: Tensor) -> Tensor:
        arrays = (X.numpy(), y.numpy().astype(float), encodings.numpy(), W.detach().numpy(), v.detach().numpy())
        loss, *gradients = logistic_loss_and_gradient(*arrays, threads=torch.get_num_threads())
        ctx.save_for_backward(*map(torch.from_numpy, gradients))
        return torch.tensor(loss, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        W_gradient, v_gradient = ctx.saved_tensors
        return outer[0] * W_gradient, outer[0] * v_gradient, None, None, None


def check_encodings(encoding: str | ArrayLike, groups: int) -> Tensor:
    """Encodings of a family or the user's own as a float64 tensor of shape (groups, encoding_dim).

    Warns when they cannot tell all groups apart: the convergence theorem, stated for orthogonal encodings, then does not
    apply. The family `none` is taken at its word.
    """
    if isinstance(encoding, str):
        return torch.from_numpy(positional_encodings(encoding, groups))
    rows = np.asarray(encoding, dtype=float)
    check_count("groups", groups, 2)
    if rows.ndim != 2 or len(rows) != groups:
        raise ValueError(f"encoding of shape {rows.shape} must be ({groups}, encoding_dim): row j encodes group j")
    if not np.isfinite(rows).all():
        raise ValueError("encoding must be finite")
    rank = int(np.linalg.matrix_rank(rows)) if rows.any() else groups
    if rank < groups:
        warnings.warn(
            f"encodings have rank {rank} for {groups} groups: Theorem 3.2 (orthogonal encodings) does not apply",
            stacklevel=3,
        )
    return torch.from_numpy(rows)


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
    block_norms: tuple[float, ...]  # Frobenius norms of W_11, W_12, W_21, W_22
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
        block_norms=(*(float(block.norm()) for block in blocks),),
        position_cosine=_cosine(blocks[3].numpy(), predicted),
    )


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.sum(a * b) / lengths) if lengths else float("nan")
