"""A small transformer over the patches of a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whichtoken.models.token_encoder import TokenEncoder


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
    width, heads, layers, hidden, dropout, block : as in `TokenEncoder`
        The layers.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.models import VisionTransformer
    >>> model = VisionTransformer(side=8, channels=1, patch=4, classes=3, width=8, heads=2).eval()
    >>> model(torch.randn(2, 1, 8, 8)).shape, model.token_attention(torch.randn(2, 1, 8, 8)).shape
    (torch.Size([2, 3]), torch.Size([2, 5]))
    """

    def __init__(
        self,
        side: int,
        channels: int,
        patch: int,
        classes: int,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 128,
        dropout: float = 0.0,
        block: str = "pre-mean",
    ) -> None:
        super().__init__()
        if side % patch:
            raise ValueError(f"patch={patch} must divide side={side}")
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.cls = nn.Parameter(0.02 * torch.randn(width))
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(dropout)
        self.encoder = TokenEncoder(width, heads, layers, hidden, dropout, block)
        self.readout = nn.Linear(width, classes, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits (batch, classes) of pictures (batch, channels, side, side)."""
        logits: Tensor = self.readout(self.encoder(self._embedded(pictures)))
        return logits

    def token_attention(self, pictures: Tensor) -> Tensor:
        """Attention of the readout on [CLS] and each patch in the last layer, (batch, 1 + patches)."""
        return self.encoder.token_attention(self._embedded(pictures))

    def _embedded(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)  # (batch, patches, width)
        tokens = torch.cat([self.cls.expand(len(patches), 1, -1), patches], dim=1)
        embedded: Tensor = self.dropout(tokens + self.positions)
        return embedded
