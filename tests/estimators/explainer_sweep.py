"""Labels of all 50 000 IMDB reviews in the page and in Python, for models of several kinds; `make sweep` runs it, in minutes."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from page_engine import PageEngine

from whichtoken import TextClassifier
from whichtoken.app.movie_reviews import bundled_movie_model


def main() -> None:
    folder = os.environ.get("WHICHTOKEN_DATA", "")
    path = Path(folder) / "imdb_reviews_50k.parquet"
    if not folder or not path.is_file():
        sys.exit("the reviews are not there: WHICHTOKEN_DATA must name a folder with imdb_reviews_50k.parquet")
    reviews = pd.read_parquet(path, columns=["text", "label"])
    texts = reviews["text"].tolist()
    some = reviews.iloc[::10]
    pairs = TextClassifier(random_state=0, min_df=10, ngram_range=(1, 2), stemmer="english")
    models = {
        "the movie model": bundled_movie_model().classifier,
        "pairs of stems": pairs.fit(some["text"].tolist(), some["label"].tolist()),
    }
    wrong = 0
    for name, model in models.items():
        found = model.classes_[PageEngine(model).labels(texts)]
        differ = int(np.sum(found != model.predict(texts)))
        print(f"{name}: {len(texts) - differ} of {len(texts)} labels are equal", flush=True)
        wrong += differ
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
