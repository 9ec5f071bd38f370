"""The two linear classifiers that attention pooling is measured against."""

from __future__ import annotations

import torch
from torch import Tensor


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
    >>> from whichtoken.models import PooledLinear
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
    >>> from whichtoken.models import VectorizedLinear
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
