"""`TextClassifier` beside TF-IDF with logistic regression and a linear SVM: means over ten random splits of each corpus.

Of each corpus a split takes so many training and test documents at random, by class; classes with fewer than 30 documents are
left out. Ours is fitted on words, on words and pairs, and with `ngram_range="auto"`; the peers see TF-IDF (sublinear) of
words, or of words and pairs, and choose C by three-fold cross-validation inside the training part (of four and three values).
Intervals are 95 % of the mean over the splits, paired. Processor time is the sum over the splits, one thread. Development
sets, on which the defaults were fixed: R8 and the training half of IMDB; the others are the test half of IMDB, R52, 20
Newsgroups and pc against mac.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.svm import LinearSVC

from whichtoken import TextClassifier
from whichtoken.app.evaluation import logistic_baseline
from whichtoken.datasets.corpora import IMDB_FILES, data_file, read_corpus
from whichtoken.datasets.review_files import read_imdb
from whichtoken.lab.benchmark import CPU, Beside, Measure

PART = "Texts"
QUESTION = (
    "How accurate and how fast are words, pairs of words, and the automatic choice between them, over ten random splits of "
    "each corpus?"
)
WHY = {
    "TF-IDF + logistic regression": {
        "win": "Strong words outweigh weak ones, and each trial starts from the values of the one before.",
        "even": "Both are linear in the words.",
        "loss": "Validation also tries a null token and a step of the attention, which takes time.",
    },
    "linear SVM": {
        "win": "By less than a point; both are linear in the words.",
        "even": "The decisions are nearly the same; the SVM gives no probabilities.",
        "loss": "By less than a point; both are linear in the words.",
    },
}

Array = NDArray[np.float64]
Texts = tuple[list[str], NDArray[Any]]

PEER = "TF-IDF + logistic regression"
SPLITS = 10
PC_AND_MAC = ("comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware")


def measure(wanted: Callable[[str], bool] = lambda corpus: True) -> Iterator[Measure]:
    """Yield accuracy, log loss and processor time on every corpus."""
    warnings.simplefilter("ignore")  # documents without a known word, classes with few documents
    TextClassifier(random_state=0).fit(["a b", "c d", "a e", "c f"] * 9, [0, 1] * 18)  # compile
    TextClassifier(random_state=0).fit(["a b", "c d", "e f", "g h"] * 9, [0, 1, 2] * 12)
    for name, corpus, train, test in (
        ("pc/mac", partial(_corpus, "20newsgroups", PC_AND_MAC), 1168, 700),
        ("R8", partial(_corpus, "reuters-r8"), 1500, 1500),
        ("R52", partial(_corpus, "reuters-r52"), 2000, 2000),
        ("IMDB, training half", partial(_imdb, "train"), 1500, 2000),
        ("IMDB, test half", partial(_imdb, "test"), 1500, 2000),
        ("20 Newsgroups", partial(_corpus, "20newsgroups"), 1500, 2000),
    ):
        if wanted(name):
            yield from _compared(name, corpus(), train, test)


def _corpus(file: str, classes: tuple[str, ...] | None = None) -> Texts:
    texts, labels = map(
        list,
        zip(*(pair for part in ("train", "test") for pair in zip(*read_corpus(file, part), strict=True)), strict=True),
    )
    names, sizes = np.unique(labels, return_counts=True)
    kept = np.flatnonzero(np.isin(labels, classes or names[sizes >= 30]))
    return [texts[i] for i in kept], np.array(labels)[kept]


def _imdb(half: str) -> Texts:
    reviews = read_imdb(data_file(*IMDB_FILES))
    rows = np.flatnonzero(reviews.split == half)
    return [reviews.texts[i] for i in rows], reviews.labels[rows]


def _compared(name: str, corpus: Texts, train: int, test: int) -> Iterator[Measure]:
    texts, labels = corpus
    case = f"{name}, {train} + {test} documents, {len(np.unique(labels))} classes, {SPLITS} splits"
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(SPLITS):
        inside, outside = train_test_split(
            np.arange(len(labels)), train_size=train, test_size=test, random_state=seed, stratify=labels
        )
        parts = [([texts[i] for i in np.sort(rows)], labels[np.sort(rows)]) for rows in (inside, outside)]
        for kind, fit in KINDS.items():
            found.setdefault(kind, []).append(_scores(fit, *parts))
    scores = {kind: np.array(rows) for kind, rows in found.items()}  # (splits, 3): accuracy, log loss, seconds
    for kind, peer in (("words", "words"), ("pairs", "pairs"), ("auto", "words")):
        ours, theirs = scores[f"ours, {kind}"], scores[f"{PEER}, {peer}"]
        beside = Beside(PEER, *_means(ours, theirs, 0), f"accuracy, {kind}", True, _interval(ours[:, 0] - theirs[:, 0]))
        yield Measure(case, f"accuracy above logistic regression, {kind}", *_above(ours, theirs, 0), beside=beside)
        beside = Beside(
            PEER, *_means(ours, theirs, 1), f"log loss, {kind}", interval=_interval(ours[:, 1] - theirs[:, 1])
        )
        yield Measure(
            case, f"log loss above logistic regression, {kind}", *_above(ours, theirs, 1), at_least=False, beside=beside
        )
        if kind != "auto":
            times = float(ours[:, 2].sum()), float(theirs[:, 2].sum())
            yield Measure(
                case, f"processor time over the peer's, {kind}", times[0] / times[1], 1, at_least=False,
                beside=Beside(PEER, *times, CPU),
            )  # fmt: skip
    ours, theirs = scores["ours, words"], scores["linear SVM"]
    beside = Beside(
        "linear SVM", *_means(ours, theirs, 0), "accuracy, words", True, _interval(ours[:, 0] - theirs[:, 0])
    )
    yield Measure(case, "accuracy above a linear SVM, words", *_above(ours, theirs, 0), beside=beside)
    ours, theirs = scores["ours, auto"], scores["ours, words"]
    low, high = _interval(ours[:, 0] - theirs[:, 0])
    detail = f"{ours[:, 0].mean():.4f} against {theirs[:, 0].mean():.4f}, difference {low:+.4f} to {high:+.4f}"
    yield Measure(case, "accuracy of auto above words", float((ours - theirs)[:, 0].mean()), 0, detail=detail)


def _means(ours: Array, theirs: Array, k: int) -> tuple[float, float]:
    return float(ours[:, k].mean()), float(theirs[:, k].mean())


def _above(ours: Array, theirs: Array, k: int) -> tuple[float, float]:
    """The mean difference, and the target."""
    return float((ours - theirs)[:, k].mean()), 0.0


def _interval(differences: Array) -> tuple[float, float]:
    """95 % of the mean over splits, by Student's t with nine degrees of freedom."""
    half = 2.262 * float(differences.std(ddof=1)) / np.sqrt(len(differences))
    return float(differences.mean()) - half, float(differences.mean()) + half


def _scores(
    fit: Callable[[Texts], Callable[[list[str]], tuple[Any, Any]]], train: Texts, test: Texts
) -> tuple[float, float, float]:
    start = time.process_time()
    answer = fit(train)
    seconds = time.process_time() - start
    labels, probabilities = answer(test[0])
    codes = np.searchsorted(np.unique(train[1]), test[1])
    loss = (
        np.nan
        if probabilities is None
        else float(-np.log(probabilities[np.arange(len(codes)), codes].clip(1e-15)).mean())
    )
    return float(np.mean(labels == test[1])), loss, seconds


def _ours(ngram_range: Any, train: Texts) -> Callable[[list[str]], tuple[Any, Any]]:
    model = TextClassifier(ngram_range=ngram_range, random_state=0).fit(*train)

    def answer(texts: list[str]) -> tuple[Any, Any]:
        found = model.predict_proba(texts)
        return model.classes_[found.argmax(axis=1)], found

    return answer


def _theirs(ngram_range: tuple[int, int], machine: bool, train: Texts) -> Callable[[list[str]], tuple[Any, Any]]:
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=ngram_range)
    features, labels = words.fit_transform(train[0]), train[1]
    if machine:
        model = GridSearchCV(LinearSVC(random_state=0), {"C": [0.1, 1.0, 10.0]}, cv=3).fit(features, labels)
    else:
        model = logistic_baseline(Cs=[1.0, 10.0, 100.0, 1000.0], max_iter=300).fit(features, labels)

    def answer(texts: list[str]) -> tuple[Any, Any]:
        seen = words.transform(texts)
        return model.predict(seen), None if machine else np.asarray(model.predict_proba(seen))

    return answer


KINDS = {
    "ours, words": partial(_ours, (1, 1)),
    "ours, pairs": partial(_ours, (1, 2)),
    "ours, auto": partial(_ours, "auto"),
    f"{PEER}, words": partial(_theirs, (1, 1), False),
    f"{PEER}, pairs": partial(_theirs, (1, 2), False),
    "linear SVM": partial(_theirs, (1, 1), True),
}
