"""`TextClassifier` beside TF-IDF with logistic regression, its reasons beside LIME and beside coefficients.

The peer is `TfidfTransformer(sublinear_tf=True)` and `LogisticRegressionCV` with its own ten values of C in five folds, on the
same n-grams, with the same one thread. LIME runs with its default 5000 samples, on a few documents only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline

from whichtoken import TextClassifier
from whichtoken.app.evaluation import logistic_baseline
from whichtoken.datasets import LevelTokens
from whichtoken.datasets.corpora import IMDB_FILES, data_file
from whichtoken.datasets.review_files import Reviews, read_imdb, read_reviews
from whichtoken.datasets.text_pipeline import TextPipeline
from whichtoken.lab.benchmark import CPU, Beside, Measure

PART = "Texts"
QUESTION = (
    "Does TextClassifier do as well on reviews as TF-IDF with logistic regression, and what do its reasons cost, compared "
    "with LIME's?"
)
WHY = {
    "TF-IDF + logistic regression": {
        "win": (
            "whichtoken tries a few values of C on part of the documents, where the alternative fits ten values in five "
            "folds. Why pairs of words gain a little accuracy was not investigated."
        ),
        "even": "With one query, the decision is that of a linear bag of words, so a linear model learns much the same.",
    },
    "LIME": {
        "even": "LIME's line is fitted to the same model, and four documents say little.",
        "win": (
            "The decision is linear in attention weights that are known, so the reasons can be read off; LIME asks the model "
            "5000 times and fits a line to the answers."
        ),
    },
}

PEER = "TF-IDF + logistic regression"
EXPLAINED, BY_LIME = 1000, 4
LEVEL_DOCUMENTS = 4  # explained by LIME


def measure() -> Iterator[Measure]:
    """Yield accuracies and times on IMDB and movie snippets, the speed of reasons, and how true they are."""
    yield from _planted()
    reviews = read_imdb(data_file(*IMDB_FILES))
    for ngrams, name in ((1, "1-grams"), (2, "1- and 2-grams")):
        yield from _imdb(reviews, ngrams, name)
    yield from _snippets()
    yield from _speed_of_reasons(reviews)


def tf_idf() -> Any:
    """The peer, on counts."""
    regression = logistic_baseline(cv=5, max_iter=1000, scoring="accuracy")
    return make_pipeline(TfidfTransformer(sublinear_tf=True), regression)


def _imdb(reviews: Reviews, ngrams: int, name: str) -> Iterator[Measure]:
    assert reviews.split is not None
    train = reviews.split == "train"
    words = TextPipeline(stop_words=(), stemmer=None, least_count=3 if ngrams == 1 else 5, ngrams=ngrams)
    _, counts = words.fit_transform(reviews.texts, fit_on=train)
    case = f"IMDB 25k/25k, {name}, |S|={counts.shape[1]}"
    models = {"ours": TextClassifier(random_state=0), "peer": tf_idf()}
    TextClassifier(C=1.0).fit(counts[:50], np.arange(50) % 2)  # compile
    seconds, right = {}, {}
    for key, model in models.items():
        start = time.process_time()
        model.fit(counts[train], reviews.labels[train])
        seconds[key] = time.process_time() - start
        right[key] = model.predict(counts[~train]) == reviews.labels[~train]
    difference = right["ours"].astype(float) - right["peer"]
    half = 1.96 * difference.std() / np.sqrt(len(difference))
    detail = f"{right['ours'].mean():.4f} against {right['peer'].mean():.4f}, paired 95 % interval +- {half:.4f}"
    mean = float(difference.mean())
    beside = Beside(PEER, right["ours"].mean(), right["peer"].mean(), "accuracy", True, (mean - half, mean + half))
    yield Measure(case, "test accuracy above TF-IDF + logistic regression", mean, 0, detail=detail, beside=beside)
    ratio, detail = seconds["ours"] / seconds["peer"], f"{seconds['ours']:.1f} s against {seconds['peer']:.1f} s"
    what, beside = "fit time, validation included, over the peer's", Beside(PEER, seconds["ours"], seconds["peer"], CPU)
    yield Measure(case, what, ratio, 3, at_least=False, detail=detail, beside=beside)


def _snippets() -> Iterator[Measure]:
    snippets = read_reviews(data_file("movie_snippets_vader.parquet"), "text", "label")
    differences, accuracies = [], []
    for train, test in StratifiedKFold(10, shuffle=True, random_state=0).split(snippets.labels, snippets.labels):
        pipeline = TextPipeline(stop_words=(), stemmer=None, least_count=1)
        _, counts = pipeline.fit_transform(snippets.texts, fit_on=train)
        scores = [
            model.fit(counts[train], snippets.labels[train]).score(counts[test], snippets.labels[test])
            for model in (TextClassifier(random_state=0), tf_idf())
        ]
        accuracies.append(scores)
        differences.append(scores[0] - scores[1])
    half = stats.t.ppf(0.975, 9) * np.std(differences, ddof=1) / np.sqrt(10)
    ours, peer = np.mean(accuracies, axis=0)
    detail = f"{ours:.4f} against {peer:.4f}, paired 95 % interval of the difference +- {half:.4f}"
    case = f"{len(snippets)} movie snippets, 10 folds"
    mean = float(np.mean(differences))
    beside = Beside(PEER, float(ours), float(peer), "accuracy", True, (mean - half, mean + half))
    yield Measure(case, "upper end of the accuracy difference", mean + half, 0, detail=detail, beside=beside)


def _speed_of_reasons(reviews: Reviews) -> Iterator[Measure]:
    from lime.lime_text import LimeTextExplainer

    train = np.random.default_rng(0).permutation(len(reviews))[:5000]
    model = TextClassifier(C=3.0, random_state=0).fit([reviews.texts[i] for i in train], reviews.labels[train])
    texts = reviews.texts[:EXPLAINED]
    model.explain(texts[:5])

    def with_words() -> None:
        for explanation in model.explain(texts):
            _ = list(explanation.reasons)

    ours, placed = (_cpu_seconds(work) / EXPLAINED for work in (lambda: model.explain(texts), with_words))
    explainer = LimeTextExplainer(random_state=0)
    start = time.process_time()
    for text in texts[:: EXPLAINED // BY_LIME]:
        explainer.explain_instance(text, model.predict_proba)
    lime = (time.process_time() - start) / BY_LIME
    peer = f"against {lime:.1f} s ({BY_LIME} reviews)"
    for what, spent in (("numbers", ours), ("numbers, words and their places", placed)):
        yield Measure(
            "reasons for IMDB reviews",
            f"times less CPU time than LIME, 5000 samples: {what}",
            lime / spent,
            1000,
            detail=f"{spent * 1e3:.2f} ms per review ({EXPLAINED} reviews) {peer}",
            beside=Beside("LIME", spent, lime, CPU),
        )


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Median of three runs."""
    times = [time.process_time()]
    for _ in range(3):
        work()
        times.append(time.process_time())
    return float(np.median(np.diff(times)))


def _planted() -> Iterator[Measure]:
    """K-level tokens: the posterior difference of every token is known."""
    source = LevelTokens()
    truth, rng = source.posterior_difference, np.random.default_rng(0)
    data, fresh = source.sample(4000, rng), source.sample(LEVEL_DOCUMENTS, rng)
    names = source.vocabulary
    ours = TextClassifier(random_state=0).fit(data.counts, data.labels)
    peer = tf_idf().fit(data.counts, data.labels)
    rank = [stats.spearmanr(scores, truth).statistic for scores in (ours.values_[:, 0, 0], peer[-1].coef_[0])]
    detail = f"rank correlation {rank[0]:.4f} against {rank[1]:.4f}"
    case = "K-level tokens, n=4000, |S|=2048"
    what, beside = (
        "value scores minus coefficients, correlation with the truth",
        Beside(PEER, rank[0], rank[1], "rank correlation", True),
    )
    yield Measure(case, what, rank[0] - rank[1], 0, detail=detail, beside=beside)
    places = {name: j for j, name in enumerate(names)}
    correlations = []
    for i, explanation in enumerate(ours.explain(fresh.counts)):
        side = 1 if explanation.label == ours.classes_[1] else -1  # the truth speaks of the second class
        found = {int(reason.token): side * reason.contribution for reason in explanation.reasons}
        weights = _lime(ours, fresh.counts[[i]], names, places)
        tokens = sorted(found)
        correlations.append(
            [stats.spearmanr([part[j] for j in tokens], truth[tokens]).statistic for part in (found, weights)]
        )
    mean = np.mean(correlations, axis=0)
    detail = f"rank correlation within a document {mean[0]:.3f} against {mean[1]:.3f} ({LEVEL_DOCUMENTS} documents)"
    what, beside = (
        "contributions minus LIME, correlation with the truth",
        Beside("LIME", mean[0], mean[1], "rank correlation", True),
    )
    yield Measure(case, what, float(mean[0] - mean[1]), 0, detail=detail, beside=beside)


def _lime(model: TextClassifier, counts: Any, names: tuple[str, ...], places: dict[str, int]) -> dict[int, float]:
    """Weights of LIME for the tokens of one document of counts, by column."""
    from lime.lime_text import LimeTextExplainer

    words = [names[j] for j, c in zip(counts.indices, counts.data, strict=True) for _ in range(c)]

    def probabilities(texts: list[str]) -> NDArray[np.float64]:
        found = [np.array([places[word] for word in text.split() if word in places], dtype=int) for text in texts]
        rows = np.stack([np.bincount(row, minlength=len(names)) for row in found])
        return np.asarray(model.predict_proba(rows.astype(float)))

    explainer = LimeTextExplainer(split_expression=r"\s+", random_state=0)
    explanation = explainer.explain_instance(" ".join(words), probabilities, num_features=len(set(words)))
    return {int(j): 0.0 for j in counts.indices} | {places[word]: weight for word, weight in explanation.as_list()}
