"""The second moment of what enters a layer, followed while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class InputCovariance:
    """Running mean of x x^T over the first input of a layer, in the training mode of the layer.

    The mean starts at the identity. `matrix` is one tensor for good: given as `covariance` to an optimiser it is up to date
    in every step.

    Parameters
    ----------
    layer
        An `nn.MultiheadAttention` or `nn.Linear`.
    decay
        Weight of the past in every forward pass.
    ridge
        Added to the diagonal, relative to its mean: tokens behind a layer normalisation fill one dimension less than
        they have.
    """

    def __init__(self, layer: nn.MultiheadAttention | nn.Linear, decay: float = 0.95, ridge: float = 1e-3) -> None:
        for name, value in (("decay", decay), ("ridge", ridge)):
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value} must lie strictly between 0 and 1")
        width = layer.in_features if isinstance(layer, nn.Linear) else layer.embed_dim
        self._name = "input" if isinstance(layer, nn.Linear) else "query"  # of the first input
        weight = next(layer.parameters())
        self.decay, self.ridge = decay, ridge
        self.matrix = torch.eye(width, dtype=weight.dtype, device=weight.device)  # (d, d)
        self._handle = layer.register_forward_pre_hook(self._observe, with_kwargs=True)

    def remove(self) -> None:
        """Stop observing."""
        self._handle.remove()

    @torch.no_grad()
    def _observe(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        first: Tensor = inputs[0] if inputs else named[self._name]
        if layer.training and first.numel():
            tokens = first.reshape(-1, len(self.matrix)).to(self.matrix)  # (n, d)
            with torch.autocast(tokens.device.type, enabled=False):  # half precision is too coarse here
                moment = tokens.T @ tokens / len(tokens)  # (d, d)
            moment.diagonal().add_(self.ridge * moment.diagonal().mean())
            self.matrix.lerp_(moment, 1.0 - self.decay)
