"""A classifier that pools a sequence by softmax attention of one learned query."""

from __future__ import annotations

import torch
from torch import Tensor


class AttentionPooling(torch.nn.Module):
    """score = <readout, X^T softmax(inverse_temperature X query)> + bias; its sign is the predicted label.

    The attention model of Barnfield, Cui, Lu, arXiv 2509.25153. All parameters start at zero, where attention is the
    mean over the tokens.

    Parameters
    ----------
    dim
        Width d of a token.
    inverse_temperature
        beta > 0 inside the softmax.
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
        scores = self.inverse_temperature * (tokens @ self.query)  # (..., L)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, dim=-1)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (...,) for tokens (..., L, d)."""
        # reading out before pooling spares the (..., d) feature
        return (self.attention(tokens, mask) * (tokens @ self.readout)).sum(dim=-1) + self.bias
