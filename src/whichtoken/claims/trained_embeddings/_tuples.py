"""Sequences in which only tuples of tokens tell the label, and a deep attention model with trained embeddings and several heads.

| symbol | code | what it is |
|---|---|---|
| k | `k` | relevant tokens that follow each other, a tuple |
| alpha_t | `alpha` | posterior difference of a tuple; its mean over any one of the tokens is 0 |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import layer_norm, softmax

LEVELS = np.array([1.0, 1 / 3, -1 / 3, -1.0])  # of the posterior difference: signs, each clear or weak
IRRELEVANT = 8  # kinds of tokens between tuples
TUPLES = 4  # of a sequence

Sample = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]  # ids (n, T), labels, log-odds (n,)


@dataclass(frozen=True)
class AdjacentTuples:
    """`TUPLES` tuples of k relevant tokens, an irrelevant token after each: the sum of a tuple's symbols tells its level.

    No token, and no k - 1 tokens of a tuple, say anything about the label.
    """

    k: int
    certainty: float  # of the label, given one clear tuple

    @property
    def kinds(self) -> int:
        return len(LEVELS) + IRRELEVANT

    @property
    def length(self) -> int:
        return TUPLES * (self.k + 1)

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        symbols = np.indices((len(LEVELS),) * self.k).reshape(self.k, -1).T
        alpha = (2 * self.certainty - 1) * LEVELS[symbols.sum(axis=1) % len(LEVELS)]
        labels = 2 * rng.integers(2, size=n) - 1
        laws = {sign: np.cumsum((1 + sign * alpha) / len(alpha))[:-1] for sign in (-1, 1)}
        draws = rng.random((n, TUPLES))
        chosen = np.where(labels[:, None] > 0, *(np.searchsorted(laws[sign], draws) for sign in (1, -1)))
        rest = len(LEVELS) + rng.integers(IRRELEVANT, size=(n, TUPLES, 1))
        ids = np.concatenate([symbols[chosen], rest], axis=2).reshape(n, -1)
        return ids, labels, np.log((1 + alpha) / (1 - alpha))[chosen].sum(axis=1)

    def structure(self, ids: Tensor, weights: list[Tensor]) -> dict[str, float]:
        """Attention of the last token of a tuple on the others, of the head of any layer that has most of it."""
        # not of the first tuple, which has little else to attend to
        last = torch.arange(1, TUPLES) * (self.k + 1) + self.k - 1
        back = torch.arange(1, self.k)
        found = [layer[:, :, last[:, None], last[:, None] - back].sum(dim=3) for layer in weights]
        return {"within": max(map(_of_best_head, found), default=0.0)}


@dataclass(frozen=True)
class Induction:
    """Triggers, each followed by another value, and one of the triggers again: the value that followed it tells the label.

    Every sequence has every trigger and every value once, so that neither tokens nor their neighbors say anything.
    """

    certainty: float

    @property
    def kinds(self) -> int:
        return 2 * len(LEVELS)

    @property
    def length(self) -> int:
        return self.kinds + 1

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        triggers, values = (rng.permuted(np.tile(np.arange(len(LEVELS)), (n, 1)), axis=1) for _ in range(2))
        asked, rows = rng.integers(len(LEVELS), size=n), np.arange(n)
        alpha = (2 * self.certainty - 1) * LEVELS[values[rows, asked]]
        labels = np.where(rng.random(n) < (1 + alpha) / 2, 1, -1)
        pairs = np.stack([triggers, values + len(LEVELS)], axis=2).reshape(n, -1)
        return np.column_stack([pairs, triggers[rows, asked]]), labels, np.log((1 + alpha) / (1 - alpha))

    def structure(self, ids: Tensor, weights: list[Tensor]) -> dict[str, float]:
        """An induction head: attention on the token before, then on the value after the first place of the trigger."""
        values = torch.arange(1, self.length - 1, 2)
        place = (ids[:, :-1] == ids[:, -1:]).int().argmax(dim=1) + 1
        after = place[:, None, None].expand(-1, weights[0].shape[1] if weights else 1, 1)
        return {
            "before": max((_of_best_head(layer[:, :, values, values - 1]) for layer in weights), default=0.0),
            "after": max((_of_best_head(layer[:, :, -1].gather(2, after)) for layer in weights), default=0.0),
        }


def _of_best_head(weights: Tensor) -> float:
    """The mean of some weights (n, heads, places) of the head in which it is largest."""
    return float(weights.mean(dim=(0, 2)).max())


class DeepAttention(torch.nn.Module):
    """f(X) = softmax(E' p + b)^T E' v with E' after `layers` - 1 layers of causal self-attention of several heads.

    Each of these adds what its heads read from normalized tokens; there is no network beside attention. Places enter by a
    learned number for each distance to the query and head, as they do in front of the `<cls>` query, which stands at the end.
    """

    def __init__(self, kinds: int, length: int, *, dim: int, heads: int, layers: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.embeddings, self.cls, self.value = (_gaussian(rng, *shape, dim) for shape in ((kinds,), (), ()))
        inner = heads * max(dim // heads, 1)
        self.maps = torch.nn.ParameterList([_gaussian(rng, 4, inner, dim) for _ in range(layers - 1)])
        self.places = torch.nn.Parameter(torch.zeros(layers - 1, heads, length))
        self.cls_places = torch.nn.Parameter(torch.zeros(length))

    def forward(self, ids: Tensor) -> Tensor:
        """Outputs (n,) of ids (n, T)."""
        return self.attend(ids)[0]

    def attend(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs, and the weights (n, heads, query, key) of every layer of self-attention."""
        tokens = self.embeddings[ids]  # (n, T, dim)
        n, length, dim = tokens.shape
        back = torch.arange(length)[:, None] - torch.arange(length)
        weights = []
        for maps, places in zip(self.maps, self.places, strict=True):
            seen = layer_norm(tokens, (dim,))
            # (3, n, heads, T, dim of a head)
            queries, keys, values = (
                (seen @ maps[:3].flatten(0, 1).T).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )
            scores = queries @ keys.mT * keys.shape[3] ** -0.5 + places[:, back.clamp(min=0)]
            weights.append(softmax(scores.masked_fill(back < 0, -torch.inf), dim=3))
            tokens = tokens + (weights[-1] @ values).transpose(1, 2).flatten(2) @ maps[3]
        seen = layer_norm(tokens, (dim,))
        selection = softmax(seen @ self.cls + self.cls_places.flip(0), dim=1)
        return (selection * (seen @ self.value)).sum(dim=1), weights


def _gaussian(rng: np.random.Generator, *shape: int) -> torch.nn.Parameter:
    """Normal numbers of variance one over the dimension, in single precision."""
    numbers = rng.standard_normal(shape) * shape[-1] ** -0.5
    return torch.nn.Parameter(torch.from_numpy(numbers.astype(np.float32)))
