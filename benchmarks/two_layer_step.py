"""Loss and gradients of two-layer attention on documents: Gram space beside the literal code on padded ids.

64 documents, 2048 dimensions, one thread: IMDB where it is here, K-level data otherwise. The
peer is model (36) as it is written, through autograd.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.claims.trained_embeddings._reviews import missing_reviews, review_counts
from whichtoken.datasets import LevelTokens, TokenCounts
from whichtoken.lab.benchmark import Measure, speed_up
from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention

from ._padded_ids import TwoLayerAttentionModule, padded_ids

PART = "Training"
QUESTION = "How long does a gradient of two layers of attention take on real documents?"
WHY = {
    "the literal PyTorch code": {
        "win": (
            "Everything after the first layer depends on the embeddings only through a small Gram matrix of each document's "
            "distinct tokens; the literal code carries every position and every dimension."
        ),
    },
}

BATCH, DIM = 64, 2048


def measure() -> Iterator[Measure]:
    """Yield the distances of the gradients from float64 in both precisions and the ratio of the speeds."""
    data, name = _documents()
    case = f"{name}, batch {BATCH}, d={DIM}"
    for kind, bound, documents in ((np.float64, 1e-13, 8), (np.float32, 1e-6, 16)):
        ours, theirs = _differences(data, documents, kind)
        yield Measure(
            case,
            f"relative distance of the gradients from float64, {kind.__name__}, {documents} documents",
            ours,
            bound,
            at_least=False,
            detail=f"from the literal code in float64; the literal code in {kind.__name__} {theirs:.2g}",
        )
    model = TwoLayerAttention.start(data.counts.shape[1], DIM, np.random.default_rng(0))
    module, ids, labels = TwoLayerAttentionModule(model), padded_ids(data.counts), torch.from_numpy(data.labels)
    yield speed_up(
        case,
        lambda: model.gradient(data.counts, data.labels),
        lambda: module.loss(ids, labels).backward(),  # type: ignore[no-untyped-call]
        "the literal PyTorch code",
        target=25 if name == "IMDB" else 2,  # K-level sequences hardly repeat a token
        repeats=3,
    )


def _differences(data: TokenCounts, documents: int, kind: type) -> list[float]:
    """Relative distances in precision `kind`, ours and the literal code's, from the literal code in float64."""
    part = data.subset(np.arange(documents))
    model = TwoLayerAttention.start(data.counts.shape[1], DIM, np.random.default_rng(0), kind)
    E, p, v = (array.astype(np.float64) for array in (model.embeddings, model.cls, model.value))
    exact = TwoLayerAttention(E, p, v)
    gradient = model.gradient(part.counts, part.labels)
    ours = np.concatenate([gradient.rows.ravel(), gradient.cls, gradient.value])
    reference, theirs = (_literal(start, part, gradient.tokens) for start in (exact, model))
    return [float(np.linalg.norm(found - reference) / np.linalg.norm(reference)) for found in (ours, theirs)]


def _literal(model: TwoLayerAttention, data: TokenCounts, tokens: NDArray[np.int32]) -> NDArray[Any]:
    """All gradients of the literal code in one vector, those of E for `tokens` only."""
    module = TwoLayerAttentionModule(model)
    loss = module.loss(padded_ids(data.counts), torch.from_numpy(data.labels))
    E, cls, value = torch.autograd.grad(loss, (module.embedding.weight, module.cls, module.value))
    return np.concatenate([E.numpy()[tokens].ravel(), cls.numpy(), value.numpy()])


def _documents() -> tuple[TokenCounts, str]:
    rng = np.random.default_rng(0)
    if reason := missing_reviews("imdb"):
        print(f"IMDB is not measured: {reason}", file=sys.stderr)
        return LevelTokens().sample(BATCH, rng), "K-level T=256"
    data = review_counts("imdb")
    return data.subset(rng.permutation(len(data))[:BATCH]), "IMDB"
