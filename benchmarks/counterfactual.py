"""Smallest deletions that flip a decision: against brute force, against random attacks, and their speed.

Random documents of up to 12 distinct tokens for brute force; synthetic reviews with a trained model for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from whichtoken import TextClassifier
from whichtoken.datasets.corpora import IMDB_FILES, data_file
from whichtoken.datasets.review_files import read_imdb
from whichtoken.datasets.review_sentences import synthetic_reviews
from whichtoken.estimators.text.counting import count_documents
from whichtoken.lab.benchmark import Measure
from whichtoken.theory.trained_embeddings.decisions import OUT_OF_REACH, certify, minimal_deletions

PART = "Texts"
QUESTION = "Are the smallest deletions that flip a decision really the smallest, and how long does finding them take?"

DOCUMENTS, ATTACKS, REVIEWS = 500, 10_000, 6000


def measure() -> Iterator[Measure]:
    """Yield disagreements with brute force, successful attacks, and seconds for 6000 reviews."""
    yield Measure(
        f"{DOCUMENTS} random documents", "sizes unlike brute force", float(_unlike_brute_force()), 0, at_least=False
    )
    texts, labels = synthetic_reviews(1000, np.random.default_rng(0))
    model = TextClassifier(C=3.0, random_state=0).fit(texts, labels)
    broken = sum(_successful_attacks(model, text, np.random.default_rng(i)) for i, text in enumerate(texts[:20]))
    case = f"20 documents, {ATTACKS} random attacks each"
    yield Measure(case, "attacks with fewer edits that succeed", float(broken), 0, at_least=False)
    yield from _speed()


def _unlike_brute_force() -> int:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(DOCUMENTS):
        tokens = int(rng.integers(1, 13))
        counts = rng.integers(1, 4, (1, tokens))
        scores, values = rng.standard_normal(tokens), rng.standard_normal(tokens) + rng.choice([-0.5, 0.5])
        bias, log_null = float(rng.normal(0, 0.5)), float(rng.choice([-np.inf, -1.0, 1.0]))
        terms, null = counts[0] * np.exp(scores) * (values + bias), np.exp(log_null) * bias
        decision = 1 if terms.sum() + null > 0 else -1
        kept = 1 - (np.arange(2**tokens)[:, None] >> np.arange(tokens) & 1)  # every set of deletions
        flipped = np.where(kept @ terms + null > 0, 1, -1) != decision
        flipped[-1] = decision != (1 if bias > 0 else -1)  # nothing left: the default decision
        sizes = (1 - kept).sum(axis=1)[flipped]
        found = minimal_deletions(counts, scores, values, bias, log_null=log_null).sizes[0]
        wrong += found != (sizes.min() if sizes.size else OUT_OF_REACH)
    return int(wrong)


def _successful_attacks(model: TextClassifier, text: str, rng: np.random.Generator) -> int:
    """Random mixtures of fewer edits than certified; how many change the label."""
    counts = count_documents(model, [text])
    fewer = int(model.certificates([text])["edits"][0]) - 1
    if fewer < 1:
        return 0
    attacked = np.repeat(counts.toarray(), ATTACKS, axis=0)
    rows = np.arange(ATTACKS)
    weights = np.exp(model.selection_[:, 0]) * (model.values_[:, 0, 0] + model.intercept_[0])
    strongest = np.argsort(weights)[[*range(5), *range(-5, 0)]]  # attackers know the worst tokens
    for _ in range(fewer):
        remove = (attacked * rng.random(attacked.shape)).argmax(axis=1)
        attacked[rows, remove] -= (attacked[rows, remove] > 0) & (rng.random(ATTACKS) < 0.8)
        insert = rng.choice(strongest, ATTACKS)
        attacked[rows, insert] += rng.random(ATTACKS) < 0.8
    outputs = model._outputs(sparse.csr_array(attacked))[:, 0] > 0
    return int((outputs != (model._outputs(counts)[0, 0] > 0)).sum())


def _speed() -> Iterator[Measure]:
    reviews = read_imdb(data_file(*IMDB_FILES))
    rows = np.random.default_rng(0).permutation(len(reviews))[:REVIEWS]
    texts = [reviews.texts[i] for i in rows]
    model = TextClassifier(C=3.0, random_state=0).fit(texts, reviews.labels[rows])
    counts = count_documents(model, texts)
    amounts = model._amounts(counts).data
    scores, values = model.selection_[:, 0], model.values_[:, 0, 0]
    arguments = (counts, scores, values, float(model.intercept_[0]), amounts, model.log_null_)
    start = time.perf_counter()
    flips = minimal_deletions(*arguments)
    seconds = time.perf_counter() - start
    reached = flips.sizes[flips.sizes > 0]
    distinct = int(np.median(np.diff(counts.indptr)))
    detail = f"median {int(np.median(reached))} of {distinct} distinct tokens"
    yield Measure(
        f"{REVIEWS} IMDB reviews", "seconds for all smallest deletions", seconds, 1, at_least=False, detail=detail
    )
    start = time.perf_counter()
    certify(*arguments)
    seconds = time.perf_counter() - start
    yield Measure(f"{REVIEWS} IMDB reviews", "seconds for all certificates", seconds, 2, at_least=False)
