"""50 000 IMDB reviews from Parquet to token counts: once per distinct word, beside one review at a time.

The peer does what one would write first with the same parts: clean a review, stem its words with PyStemmer, call the
tokenizer on it. One process, one thread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import numpy as np
import Stemmer

from whichtoken.datasets.corpora import IMDB_FILES, data_file
from whichtoken.datasets.review_files import read_imdb
from whichtoken.datasets.text_pipeline import TextPipeline
from whichtoken.datasets.token_counts import count_ids
from whichtoken.lab.benchmark import Beside, Measure

PART = "Texts"
QUESTION = "How long does it take to turn raw reviews into counts?"
WHY = {
    "review by review": {
        "win": "Each distinct word is cleaned, stemmed and split into pieces once, rather than every time it occurs.",
    },
}

SAMPLE = 2000


def measure() -> Iterator[Measure]:
    """Yield the time for all reviews, the ratio of speeds and the number of different counts on a sample."""
    path = data_file(*IMDB_FILES)
    pipeline = TextPipeline(word_pieces=data_file("bert-base-uncased-vocab.txt"))
    start, cpu = time.perf_counter(), time.process_time()
    reviews = read_imdb(path)
    fitted, counts = pipeline.fit_transform(reviews.texts)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    case = f"{len(reviews)} reviews, |S|={len(fitted.vocabulary)}, {counts.nnz} counts"
    detail = f"{seconds:.1f} s by the clock, beside whatever else ran"
    yield Measure(case, "seconds of CPU time from Parquet", cpu, 15, at_least=False, detail=detail)
    texts = reviews.texts[:SAMPLE]
    start = time.process_time()
    slow = [_review(text, pipeline) for text in texts]
    peer = time.process_time() - start
    column = {token: j for j, token in enumerate(fitted.vocabulary)}
    found = np.array([(i, column[token]) for i, row in enumerate(slow) for token in row if token in column])
    reference = count_ids(found[:, 0], found[:, 1], (len(slow), len(column)))
    different = float((reference != counts[:SAMPLE]).nnz)
    yield Measure(f"first {SAMPLE} reviews", "counts that differ", different, 0, at_least=False)
    rates = len(reviews) / cpu, SAMPLE / peer
    detail = f"{rates[0]:.0f} against {rates[1]:.0f} reviews per second of CPU time"
    beside = Beside("review by review", *rates, "reviews per s of CPU time", more_is_better=True)
    what = "times faster than review by review"
    yield Measure(f"first {SAMPLE} reviews", what, rates[0] / rates[1], 2, detail=detail, beside=beside)


def _review(text: str, pipeline: TextPipeline) -> list[str]:
    """Tokens of one review."""
    cleaned = re.sub("['’`´]", "", re.sub(r"<br\s*/?>", " ", text).lower())
    words = [word for word in re.sub(r"[\W_]", " ", cleaned).split() if word not in pipeline._stop_forms]
    stems = STEMMER.stemWords(words)
    return list(pipeline._tokenizer.encode(" ".join(stems), add_special_tokens=False).tokens)


STEMMER = Stemmer.Stemmer("english")
