"""The classifiers of the theory as torch modules: attention pooling, mean pooling, and one weight per position.

`pool` and `weights` are the kernels of `whichtoken.attention` as functions of autograd.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whichtoken.attention import pool_gradient, pool_outputs, pool_weights


def pool(scores: Tensor, values: Tensor, starts: Tensor, amounts: Any = None, log_null: Any = None) -> Tensor:
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


class AttentionPooling(torch.nn.Module):
    """score = <readout, X^T softmax(inverse_temperature X query)> + bias; its sign is the predicted label.

    The attention model of Barnfield, Cui, Lu, arXiv 2509.25153. All parameters start at zero, where attention is the
    mean over the tokens.

    Parameters
    ----------
    dim : int
        Width d of a token.
    inverse_temperature : float, default=1.0
        beta > 0 inside the softmax.
    dtype, device : torch.dtype and torch.device, optional
        Type and place of the parameters.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.sparse_tokens import AttentionPooling
    >>> head = AttentionPooling(dim=4)
    >>> tokens = torch.randn(2, 5, 4)
    >>> head.attention(tokens).shape, head(tokens).tolist()  # everything starts at zero
    (torch.Size([2, 5]), [0.0, 0.0])
    """

    def __init__(
        self,
        dim: int,
        inverse_temperature: float = 1.0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim={dim} must be at least 1")
        if not inverse_temperature > 0:
            raise ValueError(f"inverse_temperature={inverse_temperature} must be above 0")
        self.inverse_temperature = inverse_temperature
        self.query = torch.nn.Parameter(torch.zeros(dim, dtype=dtype, device=device))
        self.readout = torch.nn.Parameter(torch.zeros(dim, dtype=dtype, device=device))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def attention(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights (..., L) for tokens (..., L, d); `mask` (..., L) is True where a token exists."""
        scores = self._scores(tokens)
        amounts = None if mask is None else mask.expand_as(scores).reshape(-1)
        return weights(scores.reshape(-1), padded_starts(scores), amounts).reshape(scores.shape)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (...,) for tokens (..., L, d); a sequence without tokens has the bias."""
        scores = self._scores(tokens)
        amounts = None if mask is None else mask.expand_as(scores).reshape(-1)
        values = tokens @ self.readout  # (..., L); reading out before pooling spares the (..., d) feature
        pooled = pool(scores.reshape(-1), values.reshape(-1), padded_starts(scores), amounts)
        return pooled.reshape(scores.shape[:-1]) + self.bias

    def _scores(self, tokens: Tensor) -> Tensor:
        return self.inverse_temperature * (tokens @ self.query)  # (..., L)


class PooledLinear(torch.nn.Module):
    """score = <readout, mean token> + bias: attention pooling whose query is zero.

    Parameters
    ----------
    dim : int
        Width d of a token.
    dtype, device : torch.dtype and torch.device, optional
        Type and place of the parameters.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.sparse_tokens import PooledLinear
    >>> PooledLinear(dim=4)(torch.randn(2, 5, 4)).tolist()  # starts at zero
    [0.0, 0.0]
    """

    def __init__(self, dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim={dim} must be at least 1")
        self.readout = torch.nn.Parameter(torch.zeros(dim, dtype=dtype, device=device))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (...,) for tokens (..., L, d)."""
        return (tokens @ self.readout).mean(dim=-1) + self.bias


class VectorizedLinear(torch.nn.Module):
    """score = <readout, X> + bias with one weight per token position and coordinate.

    Parameters
    ----------
    length, dim : int
        Number of tokens L and width d of a token.
    dtype, device : torch.dtype and torch.device, optional
        Type and place of the parameters.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.sparse_tokens import VectorizedLinear
    >>> model = VectorizedLinear(length=5, dim=4)
    >>> sum(parameter.numel() for parameter in model.parameters()), model(torch.randn(2, 5, 4)).shape
    (21, torch.Size([2]))
    """

    def __init__(
        self, length: int, dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        for name, value in (("length", length), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.readout = torch.nn.Parameter(torch.zeros(length, dim, dtype=dtype, device=device))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (...,) for tokens (..., L, d)."""
        return torch.einsum("...ld,ld->...", tokens, self.readout) + self.bias
