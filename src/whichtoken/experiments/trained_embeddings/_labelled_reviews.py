"""Reviews to train on, real or synthetic, with as many good as bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.trained_embeddings._corpora import CORPORA, review_counts

if TYPE_CHECKING:
    from whichtoken.data import TokenCounts

SOURCES = ("synthetic", *CORPORA)
LEAST_COUNT = 50  # of a piece in real reviews, as in the paper
SYNTHETIC_LEAST_COUNT = 10


def labelled_reviews(source: str, most: int, rng: np.random.Generator) -> TokenCounts:
    """At most `most` reviews drawn at random (0: all); pieces that are rare in what is left are purged again."""
    from whichtoken.data import TokenCounts

    if source == "synthetic":
        if most < 1:
            raise ValueError(f"reviews={most} must be at least 1 for source='synthetic', of which there is no end")
        from whichtoken.data.review_sentences import synthetic_reviews
        from whichtoken.data.text_pipeline import TextPipeline, prepare

        return prepare(*synthetic_reviews(most, rng), TextPipeline(least_count=SYNTHETIC_LEAST_COUNT))
    if source not in CORPORA:
        raise ValueError(f"source={source!r} must be one of {', '.join(SOURCES)}")
    data = review_counts(source)
    size = min(int(np.sum(data.labels == sign)) for sign in (-1, 1))
    size = min(size, most // 2) if most else size
    if 2 * size == len(data):
        return data
    rows = np.concatenate([rng.permutation(np.flatnonzero(data.labels == sign))[:size] for sign in (-1, 1)])
    chosen = data.subset(rows)
    frequent = np.flatnonzero(np.asarray(chosen.counts.sum(axis=0)) >= LEAST_COUNT)
    return TokenCounts(chosen.counts[:, frequent], chosen.labels)
