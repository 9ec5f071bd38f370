"""The one-layer and the two-layer model as ordinary torch modules on padded token ids: what counts are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whichtoken.datasets.token_counts import as_counts
from whichtoken.theory.trained_embeddings.cls_model import ClsModel

PADDING = -1


class ClsAttentionModule(nn.Module):
    """f(X) = softmax(p^T E_X^T) E_X v, equation (1) of Wu, Shevchenko, Oymak, Mondelli: the textbook form, on padded token ids.

    Parameters start at those of the model.
    """

    def __init__(self, model: ClsModel) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.tensor(model.embeddings), freeze=False)  # type: ignore[no-untyped-call]
        self.cls = nn.Parameter(torch.tensor(model.cls))
        self.value = nn.Parameter(torch.tensor(model.value))
        self.logit_scale = model.logit_scale

    def forward(self, ids: Tensor) -> Tensor:
        """Outputs (batch,) of ids (batch, T); places behind the end of a document hold PADDING."""
        padding = ids == PADDING
        tokens = self.first_layer(self.embedding(ids.clamp(min=0)), padding)  # (batch, T, d)
        weights = _softmax(self.logit_scale * (tokens @ self.cls), padding)
        return (weights * (tokens @ self.value)).sum(dim=1)

    def first_layer(self, tokens: Tensor, padding: Tensor) -> Tensor:
        return tokens

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean logistic loss; labels (batch,) are -1 or +1."""
        return nn.functional.softplus(-labels * self(ids)).mean()


class TwoLayerAttentionModule(ClsAttentionModule):
    """The two-layer model in torch: attention behind LayerNorm(softmax(E_X E_X^T) E_X + E_X), equation (36) of the same paper."""

    def first_layer(self, tokens: Tensor, padding: Tensor) -> Tensor:
        mixed = _softmax(self.logit_scale * (tokens @ tokens.mT), padding[:, None, :]) @ tokens + tokens
        return nn.functional.layer_norm(mixed, mixed.shape[-1:])


def _softmax(logits: Tensor, padding: Tensor) -> Tensor:
    """Softmax over the last axis; padding has no weight, also where there is nothing else: -inf would make that nan."""
    filled = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
    return torch.softmax(filled, dim=-1).masked_fill(padding, 0.0)


def padded_ids(counts: Any, rows: Any = slice(None)) -> Tensor:
    """Token ids (batch, longest document) of rows of a count matrix, padded with PADDING."""
    chosen = as_counts(as_counts(counts)[rows])
    lengths = np.asarray(chosen.sum(axis=1))
    ids = np.full((len(lengths), max(1, int(lengths.max(initial=0)))), PADDING, dtype=np.int64)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.repeat(chosen.indices, chosen.data)
    return torch.from_numpy(ids)
