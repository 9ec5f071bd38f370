"""What a user would take instead of attention, each with the care that its users give it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from whichtoken.errors import unknown
from whichtoken.estimators.logistic_baseline import FOLDS, logistic_baseline

TEXTS = {"logistic": "TF-IDF + logistic regression", "naive-bayes": "counts + naive Bayes"}
TABLES = {"logistic": "logistic regression", "boosting": "gradient boosting"}
ENOUGH_TO_CHOOSE = 100_000  # documents from which on a part of them chooses C, as in our own fit


def check_baseline(kind: str | None, known: Mapping[str, str]) -> None:
    """Refuse a name that is not in the list; call it before the table is read."""
    if kind is not None and kind not in known:
        raise unknown("baseline", kind, known)


def text_baseline(kind: str, ngrams: int, class_weight: str | None = None) -> Any:
    """A classifier of texts, with `fit`, `classes_` and `predict_proba`."""
    if kind == "naive-bayes":
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB
        from sklearn.pipeline import make_pipeline

        return make_pipeline(CountVectorizer(ngram_range=(1, ngrams)), MultinomialNB())
    return _TfIdf(ngrams, class_weight)


def table_baseline(kind: str, class_weight: str | None = None) -> Any:
    """A classifier of columns of numbers."""
    if kind == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(class_weight=class_weight, random_state=0)
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), logistic_baseline(class_weight=class_weight))


class _TfIdf:
    """The usual bag of words; of many documents a part chooses C, as in our own fit."""

    def __init__(self, ngrams: int, class_weight: str | None) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, ngrams))
        self.class_weight = class_weight

    def fit(self, X: Iterable[str], y: NDArray[Any]) -> _TfIdf:
        """Train."""
        features = self.vectorizer.fit_transform(X)
        self.regression = self._chosen(features, y)
        self.classes_ = self.regression.classes_
        return self

    def _chosen(self, features: Any, y: NDArray[Any]) -> Any:
        """With the C that is best on documents of classes that every fold has, and of many on a part of them."""
        classes, counts = np.unique(y, return_counts=True)
        some = np.flatnonzero(np.isin(y, classes[counts >= FOLDS]))
        if len(some) > ENOUGH_TO_CHOOSE:
            some = np.sort(np.random.default_rng(0).choice(some, ENOUGH_TO_CHOOSE, replace=False))
        if len(np.unique(y[some])) < 2:
            return LogisticRegression(max_iter=2000, class_weight=self.class_weight).fit(features, y)
        search = logistic_baseline(class_weight=self.class_weight).fit(features[some], y[some])
        if len(some) == len(y):
            return search
        C = float(np.ravel(search.C_)[0])  # older versions repeat it for each class
        return LogisticRegression(C=C, max_iter=2000, class_weight=self.class_weight).fit(features, y)

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float64]:
        """Probabilities of the classes, (n, n_classes)."""
        return np.asarray(self.regression.predict_proba(self.vectorizer.transform(X)))
