"""The layers that a text and a picture transformer have in common, with their attention open to view."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


class TokenEncoder(nn.Module):
    """A stack of transformer layers and the readout of one vector per sequence.

    Parameters
    ----------
    width, heads, layers, hidden, dropout : int, int, int, int, float
        Sizes of the `nn.TransformerEncoderLayer`s, which have no biases; `hidden` is the width of the dense layers.
    block : {"pre-mean", "post-cls"}
        `pre-mean`: normalization before attention and dense layers, mean of all tokens at the end; `post-cls`: both
        after the residual sum, and the first token, [CLS], at the end.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.mirror_descent import TokenEncoder
    >>> encoder = TokenEncoder(width=8, heads=2, layers=1, hidden=16, dropout=0.0, block="pre-mean")
    >>> encoder(torch.randn(3, 5, 8)).shape, encoder.token_attention(torch.randn(3, 5, 8)).shape
    (torch.Size([3, 8]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        width: int,
        heads: int = 2,
        layers: int = 1,
        hidden: int = 128,
        dropout: float = 0.0,
        block: str = "pre-mean",
    ) -> None:
        super().__init__()
        if block not in ("pre-mean", "post-cls"):
            raise ValueError(f"block={block!r} must be pre-mean or post-cls")
        if width % heads:
            raise ValueError(f"width={width} must be a multiple of heads={heads}")
        self.mean, self.dropout = block == "pre-mean", dropout
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
        return _weighted_sum(self.norm(tokens), self._readout(tokens, padding))

    def token_attention(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """What the readout looks at in the last layer, (batch, length): its row of attention, meaned over heads."""
        for layer in self.layers[:-1]:
            tokens = layer(tokens, src_key_padding_mask=padding)
        last = cast(nn.TransformerEncoderLayer, self.layers[-1])
        inputs = last.norm1(tokens) if self.mean else tokens
        attention = last.self_attn(inputs, inputs, inputs, key_padding_mask=padding)[1]  # (batch, length, length)
        return _weighted_sum(attention, self._readout(tokens, padding))

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


def _weighted_sum(rows: Tensor, shares: Tensor) -> Tensor:
    return torch.einsum("blw,bl->bw", rows, shares)


PADDING = 0  # code of places behind the end of a text


class SentimentTransformer(nn.Module):
    """One logit per text, positive for a good review.

    The transformer of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581: learned positions, no biases; their block is
    `post-cls`.

    Parameters
    ----------
    vocabulary : int
        Number of token codes; code 0 is padding.
    length : int
        Longest text, in tokens.
    width : int, default=64
        Of a token.
    **layers : as in `TokenEncoder`
        The layers.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.mirror_descent import SentimentTransformer
    >>> model = SentimentTransformer(vocabulary=100, length=6, width=8, heads=2).eval()
    >>> model(torch.tensor([[1, 5, 7, 2, 0, 0]])).shape
    torch.Size([1])
    """

    def __init__(self, vocabulary: int, length: int, width: int = 64, **layers: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)  # torch's tokens of norm width**0.5 learn slowly
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.encoder = TokenEncoder(width, **layers)
        self.dropout = nn.Dropout(self.encoder.dropout)
        self.readout = nn.Linear(width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch,) of codes (batch, length)."""
        logits: Tensor = self.readout(self.encoder(self._embed(codes), codes == PADDING))
        return logits.squeeze(1)

    def token_attention(self, codes: Tensor) -> Tensor:
        """Attention of the readout on each token in the last layer, (batch, length)."""
        return self.encoder.token_attention(self._embed(codes), codes == PADDING)

    def _embed(self, codes: Tensor) -> Tensor:
        length = codes.shape[1]
        if length > len(self.positions):
            raise ValueError(f"codes of length {length} must not exceed length={len(self.positions)}")
        tokens: Tensor = self.dropout(self.embedding(codes) + self.positions[:length])  # (batch, length, width)
        return tokens


class VisionTransformer(nn.Module):
    """Logits of the classes of a picture.

    Square patches, a [CLS] token in front of them, learned positions; layers as in `TokenEncoder`, of which `pre-mean`
    takes the mean of all tokens.

    Parameters
    ----------
    side, channels : int
        Pictures have shape (channels, side, side).
    patch : int
        Side of a patch; it divides `side`.
    classes : int
        Number of classes.
    width : int, default=64
        Of a token.
    **layers : as in `TokenEncoder`
        The layers.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.mirror_descent import VisionTransformer
    >>> model = VisionTransformer(side=8, channels=1, patch=4, classes=3, width=8, heads=2).eval()
    >>> model(torch.randn(2, 1, 8, 8)).shape, model.token_attention(torch.randn(2, 1, 8, 8)).shape
    (torch.Size([2, 3]), torch.Size([2, 5]))
    """

    def __init__(self, side: int, channels: int, patch: int, classes: int, width: int = 64, **layers: Any) -> None:
        super().__init__()
        if side % patch:
            raise ValueError(f"patch={patch} must divide side={side}")
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.cls = nn.Parameter(0.02 * torch.randn(width))
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2 + 1, width))
        self.encoder = TokenEncoder(width, **layers)
        self.dropout = nn.Dropout(self.encoder.dropout)
        self.readout = nn.Linear(width, classes, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits (batch, classes) of pictures (batch, channels, side, side)."""
        logits: Tensor = self.readout(self.encoder(self._embed(pictures)))
        return logits

    def token_attention(self, pictures: Tensor) -> Tensor:
        """Attention of the readout on [CLS] and each patch in the last layer, (batch, 1 + patches)."""
        return self.encoder.token_attention(self._embed(pictures))

    def _embed(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)  # (batch, patches, width)
        tokens = torch.cat([self.cls.expand(len(patches), 1, -1), patches], dim=1)
        embedded: Tensor = self.dropout(tokens + self.positions)
        return embedded
