"""Softmax pooling for torch: the kernels of `whichtoken.attention` with a backward of their own, exact at any spread of scores.

Autograd through `torch.softmax` gives the textbook gradient q_t (g_t - f), which is rounding once one token wins.
The kernels run on the CPU; tensors of another device are taken there and back. Gradients cannot be differentiated again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whichtoken.attention import pool_gradient, pool_outputs, pool_weights


def pool(
    scores: Tensor,
    values: Tensor,
    starts: Tensor,
    amounts: Tensor | None = None,
    log_null: Tensor | float | None = None,
) -> Tensor:
    """Outputs (n, [h], [k]) of `attention.softmax_pool`; gradients flow to scores, values and `log_null`."""
    return _Pool.apply(scores, values, starts, amounts, log_null)  # type: ignore[no-untyped-call, no-any-return]


def weights(scores: Tensor, starts: Tensor, amounts: Tensor | None = None) -> Tensor:
    """Softmax weights of the tokens within each sequence, like scores (N,)."""
    return _Weights.apply(scores, starts, amounts)  # type: ignore[no-untyped-call, no-any-return]


def padded_starts(scores: Tensor) -> Tensor:
    """Where the sequences of a padded tensor (..., L) start once it is flat."""
    return torch.arange(scores.shape[:-1].numel() + 1) * scores.shape[-1]


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, starts: Tensor, amounts: Any, log_null: Any) -> Any:
        ctx.save_for_backward(*(part for part in (scores, values, starts, amounts, log_null) if _is_tensor(part)))
        ctx.rest = [None if _is_tensor(part) else (part,) for part in (scores, values, starts, amounts, log_null)]
        return _tensor(pool_outputs(*map(_array, (scores, values, starts, amounts, log_null))), values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        arguments = [next(saved) if part is None else part[0] for part in ctx.rest]
        found = pool_gradient(_array(slopes), *map(_array, arguments))
        scores, values, *_, null = arguments
        d_null = _tensor(found.log_null, null) if _is_tensor(null) else None
        return _tensor(found.scores, scores), _tensor(found.values, values), None, None, d_null


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, starts: Tensor, amounts: Any) -> Any:
        ctx.arguments = _array(scores.detach().clone()), _array(starts), _array(amounts)
        return _tensor(pool_weights(*ctx.arguments), scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Any:
        scores, starts, amounts = ctx.arguments
        # sum_t slope_t q_t is the output for the values slope_t: its slopes in the scores keep their digits
        found = pool_gradient(np.ones(len(starts) - 1), scores, _array(slopes), starts, amounts)
        return _tensor(found.scores, slopes), None, None


def _is_tensor(part: Any) -> bool:
    return isinstance(part, Tensor)


def _array(part: Any) -> Any:
    return part.detach().cpu().numpy() if isinstance(part, Tensor) else part


def _tensor(array: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(array)).to(like)
