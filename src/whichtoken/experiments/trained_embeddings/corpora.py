"""Real reviews as token counts, read once per process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whichtoken.data import TokenCounts

FILES = {"imdb": "imdb_reviews_50k.parquet", "yelp": "yelp_reviews_1000_1500.parquet"}
WORD_PIECES = "bert-base-uncased-vocab.txt"


def missing_reviews(source: str) -> str:
    """Why the reviews of a source cannot be had, and how to get them; empty if they can or if the source is no corpus."""
    if source not in FILES:
        return ""
    missing = [name for name in (FILES[source], WORD_PIECES) if _file(name) is None]
    if not missing:
        return ""
    return f"{source} reviews need {' and '.join(missing)} in the folder named by WHICHTOKEN_DATA"


@cache
def review_counts(source: str) -> TokenCounts:
    """All reviews of a source, prepared as in the paper; the vocabulary is that of all texts."""
    from whichtoken.data.review_files import read_imdb, read_yelp
    from whichtoken.data.text_pipeline import TextPipeline, prepare

    path, pieces = _file(FILES[source]), _file(WORD_PIECES)
    assert path is not None
    assert pieces is not None
    reviews = read_imdb(path) if source == "imdb" else read_yelp(path)
    return prepare(reviews.texts, reviews.labels, TextPipeline(word_pieces=pieces))


def _file(name: str) -> Path | None:
    path = Path(os.environ.get("WHICHTOKEN_DATA", "")) / name
    return path if os.environ.get("WHICHTOKEN_DATA") and path.is_file() else None
