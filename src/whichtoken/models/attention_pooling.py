"""A classifier that pools a sequence by softmax attention of one learned query."""

from __future__ import annotations

import torch
from torch import Tensor

from whichtoken.models.attention_function import padded_starts, pool, weights


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
    >>> from whichtoken.models import AttentionPooling
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
