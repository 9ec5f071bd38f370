"""Numbers and several labels, from texts and from bags, beside the linear models that people take for them.

Texts: the mean rating that people gave to 10 605 snippets of movie reviews, the stars of 8 135 restaurant reviews, and of these
also three labels at once: above three stars; one or five stars; longer than most. Bags: about ten pictures of digits each, whose
number is the largest digit, or whose labels are the digits 0, 4 and 9. Half of the texts and 300 bags are learned, with defaults
on both sides; peers choose their ridge by three-fold cross-validation. Intervals are 95 %, by a paired bootstrap over what was
not learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from whichtoken import BagClassifier, TextClassifier
from whichtoken.app.evaluation import logistic_baseline
from whichtoken.datasets.corpora import data_file
from whichtoken.estimators import BagRegressor, TextRegressor
from whichtoken.lab.benchmark import CPU, Beside, Cases, Measure, cpu_seconds

PART = "Texts"
QUESTION = "Are numbers and multiple labels predicted as well as by the usual linear models?"
WHY: dict[str, dict[str, str]] = {
    "TF-IDF + ridge regression": {
        "win": (
            "By two hundredths of R2 on long reviews; whether attention, the null token or the starting point makes the "
            "difference was not investigated."
        ),
        "even": "On short snippets, both are linear in the words.",
        "loss": (
            "whichtoken also chooses a null token and attention on held-out texts; ridge regression chooses only its ridge."
        ),
    },
    "TF-IDF + logistic regression for each label": {
        "win": "All labels share one attention and one choice of settings; the alternative chooses a ridge for each label.",
    },
    "mean pooling + ridge regression": {
        "win": (
            "One picture decides, and a mean dilutes it. No linear function of the pixels recognizes a digit, so validation "
            "chooses the network."
        ),
        "loss": (
            "whichtoken compares three maps by cross-validation and trains networks for each fold; the alternative solves one "
            "linear system."
        ),
    },
    "mean pooling + logistic regression for each label": {
        "win": (
            "One picture decides, and a mean dilutes it. No linear function of the pixels recognizes a digit, so validation "
            "chooses the network."
        ),
        "loss": "whichtoken compares three maps by cross-validation and trains networks for each fold and label.",
    },
}

Array = NDArray[np.float64]
BAGS, TESTED, DIGITS = 300, 600, (0, 4, 9)
BOOTSTRAPS = 500


def measure(wanted: Cases) -> Iterator[Measure]:
    """Yield what is explained of numbers and the log loss of labels, ours beside the peer's, and the time of both."""
    if wanted(case := "ratings of 10,605 snippets of movie reviews"):
        table = _table("movie_snippets_vader.parquet")
        yield from _numbers(case, *_halves(table["text"].to_numpy(), table["mean_rating"].to_numpy(float)), _texts())
    if wanted(case := "stars of 8,135 reviews"):
        table = _table("yelp_reviews_1000_1500.parquet")
        yield from _numbers(case, *_halves(table["text"].to_numpy(), table["stars"].to_numpy(float)), _texts())
    if wanted(case := "three labels of 8,135 reviews"):
        table = _table("yelp_reviews_1000_1500.parquet")
        stars, length = table["stars"].to_numpy(float), table["text"].str.len()
        labels = np.column_stack([stars > 3, (stars == 1) | (stars == 5), length > length.median()]).astype(int)
        yield from _labels(case, *_halves(table["text"].to_numpy(), labels), _texts())
    for case, target, compare in (
        ("the largest digit of a bag", _largest, _numbers), ("digits 0, 4 and 9 in a bag", _held, _labels)
    ):  # fmt: skip
        if wanted(case):
            yield from compare(case, *_digit_bags(target), _bags())


def _texts() -> dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]]:
    split = TfidfVectorizer(sublinear_tf=True)
    return {
        "number": (
            "TF-IDF + ridge regression", lambda: TextRegressor(random_state=0),
            lambda: make_pipeline(split, RidgeCV(np.logspace(-2, 2, 9), cv=3)),
        ),
        "labels": (
            "TF-IDF + logistic regression for each label", lambda: TextClassifier(random_state=0),
            lambda: make_pipeline(split, OneVsRestClassifier(logistic_baseline())),
        ),
    }  # fmt: skip


def _bags() -> dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]]:
    means = FunctionTransformer(lambda bags: np.array([bag.mean(axis=0) for bag in bags]))
    return {
        "number": (
            "mean pooling + ridge regression", lambda: BagRegressor(random_state=0),
            lambda: make_pipeline(means, StandardScaler(), RidgeCV(np.logspace(-2, 4, 13), cv=3)),
        ),
        "labels": (
            "mean pooling + logistic regression for each label", lambda: BagClassifier(random_state=0),
            lambda: make_pipeline(means, StandardScaler(), OneVsRestClassifier(logistic_baseline())),
        ),
    }  # fmt: skip


def _numbers(case: str, X: Any, y: Array, fresh: Any, truth: Array, models: Any) -> Iterator[Measure]:
    peer, ours, theirs = models["number"]
    found, spent = zip(
        *(_fitted(make(), X, y, lambda model: model.predict(fresh)) for make in (ours, theirs)), strict=True
    )
    losses = [(truth - part) ** 2 for part in found]
    rows = np.random.default_rng(0).integers(len(truth), size=(BOOTSTRAPS, len(truth)))
    total = truth[rows].var(axis=1)
    drawn = [1 - loss[rows].mean(axis=1) / total for loss in losses]
    scores = [float(1 - loss.mean() / truth.var()) for loss in losses]
    low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975]).tolist()
    beside = Beside(peer, scores[0], scores[1], "R2", more_is_better=True, interval=(low, high))
    detail = f"{scores[0]:.3f} against {scores[1]:.3f}, difference {low:+.4f} to {high:+.4f}"
    yield Measure(case, "R2, ours less theirs", scores[0] - scores[1], 0.0, detail=detail, beside=beside)
    yield _time(case, peer, spent)


def _labels(case: str, X: Any, y: Any, fresh: Any, truth: Any, models: Any) -> Iterator[Measure]:
    peer, ours, theirs = models["labels"]
    found, spent = zip(
        *(_fitted(make(), X, y, lambda model: model.predict_proba(fresh)) for make in (ours, theirs)), strict=True
    )
    chances = [np.clip(np.where(truth == 1, part, 1 - part), 1e-15, 1) for part in found]
    losses = [-np.log(part).mean(axis=1) for part in chances]
    drawn = np.random.default_rng(0).choice(losses[0] - losses[1], size=(BOOTSTRAPS, len(truth))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    means, right = [float(loss.mean()) for loss in losses], [float((part > 0.5).mean()) for part in chances]
    beside = Beside(peer, means[0], means[1], "log loss of a label", interval=(low, high))
    detail = f"{means[0]:.3f} against {means[1]:.3f}; right labels {right[0]:.3f} against {right[1]:.3f}"
    yield Measure(case, "log loss of a label, theirs less ours", means[1] - means[0], 0.0, detail=detail, beside=beside)
    yield _time(case, peer, spent)


def _fitted(model: Any, X: Any, y: Any, ask: Callable[[Any], Any]) -> tuple[Array, float]:
    spent = cpu_seconds(lambda: model.fit(X, y))
    return np.asarray(ask(model)), spent


def _time(case: str, peer: str, spent: tuple[float, ...]) -> Measure:
    beside, detail = Beside(peer, spent[0], spent[1], CPU), f"{spent[0]:.3g} against {spent[1]:.3g}"
    return Measure(case, "times quicker to fit", spent[1] / spent[0], 1.0, detail=detail, beside=beside)


def _table(name: str) -> Any:
    import pandas as pd

    return pd.read_parquet(data_file(name))


def _halves(X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    order = np.random.default_rng(36).permutation(len(X))
    first, second = np.array_split(order, 2)
    return X[first].tolist(), y[first], X[second].tolist(), y[second]


def _digit_bags(target: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any]:
    """Bags to learn and to test on, of other pictures."""
    from sklearn.datasets import load_digits

    rng, (pictures, digits) = np.random.default_rng(36), load_digits(return_X_y=True)
    found: list[Any] = []
    for rows, count in zip(np.array_split(rng.permutation(len(digits)), 2), (BAGS, TESTED), strict=True):
        bags = [rng.choice(rows, max(1, round(rng.normal(10, 2)))) for _ in range(count)]
        found += [[pictures[bag] for bag in bags], np.array([target(digits[bag]) for bag in bags])]
    return tuple(found)


def _largest(digits: Any) -> float:
    return float(digits.max())


def _held(digits: Any) -> list[int]:
    return [int((digits == wanted).any()) for wanted in DIGITS]
