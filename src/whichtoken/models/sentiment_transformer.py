"""A small transformer that tells good reviews from bad ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whichtoken.models.token_encoder import TokenEncoder

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
    width, heads, layers, hidden, dropout, block : as in `TokenEncoder`
        The layers.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.models import SentimentTransformer
    >>> model = SentimentTransformer(vocabulary=100, length=6, width=8, heads=2).eval()
    >>> model(torch.tensor([[1, 5, 7, 2, 0, 0]])).shape
    torch.Size([1])
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 64,
        heads: int = 2,
        layers: int = 1,
        hidden: int = 128,
        dropout: float = 0.2,
        block: str = "pre-mean",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)  # torch's tokens of norm width**0.5 learn slowly
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.encoder = TokenEncoder(width, heads, layers, hidden, dropout, block)
        self.readout = nn.Linear(width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch,) of codes (batch, length)."""
        logits: Tensor = self.readout(self.encoder(self._embedded(codes), codes == PADDING))
        return logits.squeeze(1)

    def token_attention(self, codes: Tensor) -> Tensor:
        """Attention of the readout on each token in the last layer, (batch, length)."""
        return self.encoder.token_attention(self._embedded(codes), codes == PADDING)

    def _embedded(self, codes: Tensor) -> Tensor:
        length = codes.shape[1]
        if length > len(self.positions):
            raise ValueError(f"codes of length {length} must not exceed length={len(self.positions)}")
        tokens: Tensor = self.dropout(self.embedding(codes) + self.positions[:length])  # (batch, length, width)
        return tokens
