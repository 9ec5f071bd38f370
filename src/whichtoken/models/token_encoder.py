"""The layers that a text and a picture transformer have in common, with their attention open to view."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


class TokenEncoder(nn.Module):
    """A stack of transformer layers and the readout of one vector per sequence.

    Parameters
    ----------
    width, heads, layers, hidden, dropout : int, int, int, int, float
        Sizes of the `nn.TransformerEncoderLayer`s, which have no biases; `hidden` is the width of the dense layers.
    block : {"pre-mean", "post-cls"}
        `pre-mean`: normalisation before attention and dense layers, mean of all tokens at the end; `post-cls`: both
        after the residual sum, and the first token, [CLS], at the end.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.models import TokenEncoder
    >>> encoder = TokenEncoder(width=8, heads=2, layers=1, hidden=16, dropout=0.0, block="pre-mean")
    >>> encoder(torch.randn(3, 5, 8)).shape, encoder.token_attention(torch.randn(3, 5, 8)).shape
    (torch.Size([3, 8]), torch.Size([3, 5]))
    """

    def __init__(self, width: int, heads: int, layers: int, hidden: int, dropout: float, block: str) -> None:
        super().__init__()
        if block not in ("pre-mean", "post-cls"):
            raise ValueError(f"block={block!r} must be pre-mean or post-cls")
        if width % heads:
            raise ValueError(f"width={width} must be a multiple of heads={heads}")
        self.mean = block == "pre-mean"
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, hidden, dropout, "gelu", batch_first=True, norm_first=self.mean, bias=False
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, bias=False) if self.mean else nn.Identity()

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """One vector per sequence, (batch, width), of tokens (batch, length, width); True in `padding` is no token."""
        for layer in self.layers:
            tokens = layer(tokens, src_key_padding_mask=padding)
        return _weighted(self.norm(tokens), self._readout(tokens, padding))

    def token_attention(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """What the readout looks at in the last layer, (batch, length): its row of attention, meaned over heads."""
        for layer in self.layers[:-1]:
            tokens = layer(tokens, src_key_padding_mask=padding)
        last = cast(nn.TransformerEncoderLayer, self.layers[-1])
        inputs = last.norm1(tokens) if self.mean else tokens
        attention = last.self_attn(inputs, inputs, inputs, key_padding_mask=padding)[1]  # (batch, length, length)
        return _weighted(attention, self._readout(tokens, padding))

    def projections(self) -> dict[str, Tensor]:
        """Weights of the queries, keys and values of all layers, each (layers, width, width)."""
        stacked = [cast(nn.TransformerEncoderLayer, layer).self_attn.in_proj_weight for layer in self.layers]
        whole = torch.stack([cast(Tensor, weight).detach() for weight in stacked])  # (layers, 3 width, width)
        return dict(zip(("queries", "keys", "values"), whole.chunk(3, dim=1), strict=True))

    def _readout(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        """Share of each token in the readout, (batch, length)."""
        shares = tokens.new_zeros(tokens.shape[:2])
        if not self.mean:
            shares[:, 0] = 1.0
            return shares
        shares = shares + 1.0 if padding is None else (~padding).to(tokens)
        return shares / shares.sum(dim=1, keepdim=True)


def _weighted(rows: Tensor, shares: Tensor) -> Tensor:
    return torch.einsum("blw,bl->bw", rows, shares)
