"""A small causal transformer over characters, put together from torch's own layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CharacterTransformer(nn.Module):
    """Logits of the next character at every place.

    Learned positions, layers with normalisation before attention and before the two dense layers, no dropout: what
    anybody would write down first, so that optimisers are compared on nothing special.

    Parameters
    ----------
    characters
        Size of the alphabet.
    context
        Longest sequence.
    width, heads, layers
        Sizes of the `nn.TransformerEncoderLayer`s.
    """

    mask: Tensor

    def __init__(self, characters: int, context: int = 32, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch, length, characters) of codes (batch, length)."""
        length = codes.shape[1]
        if length > len(self.positions):
            raise ValueError(f"codes of length {length} must not exceed context={len(self.positions)}")
        hidden = self.embedding(codes) + self.positions[:length]  # (batch, length, width)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask[:length, :length], is_causal=True)
        logits: Tensor = self.readout(self.norm(hidden))
        return logits

    def attentions(self) -> list[nn.MultiheadAttention]:
        """The attention of every layer."""
        return [module for module in self.modules() if isinstance(module, nn.MultiheadAttention)]
