"""From a file of texts to a saved model, with honest test metrics beside those of TF-IDF and logistic regression."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from whichtoken.data.bag_tables import whole_numbers_where_possible
from whichtoken.data.column_roles import check_roles, filled
from whichtoken.data.review_files import label_names, text_values
from whichtoken.data.table_files import stream_table
from whichtoken.display.notes import each_warning_once
from whichtoken.errors import UsageError
from whichtoken.estimators.evaluation import FitReport, check_split, measured, predictions, split_rows
from whichtoken.estimators.logistic_baseline import logistic_baseline
from whichtoken.estimators.model_folder import check_writable
from whichtoken.estimators.text.classifier import ENOUGH_TO_CHOOSE, TextClassifier

if TYPE_CHECKING:
    import pandas as pd


def fit_text(
    path: Path,
    folder: Path,
    *,
    text: str = "text",
    label: str = "label",
    groups: str | None = None,
    ngrams: int = 1,
    stemmer: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    separator: str | None = None,
    progress: bool = False,
) -> FitReport:
    """Train a `TextClassifier` on a table of texts and labels and save it; documents of one group stay on one side."""
    check_writable(folder)
    check_split(test_share, seed)
    roles = {"text": text, "label": label} | ({} if groups is None else {"group": groups})
    check_roles(roles.items())
    labels: list[str] = []
    members: list[str] = []
    for piece in stream_table(path, list(roles.values()), separator=separator):
        text_values(path, piece[text], text, len(labels))  # what is no text is refused before any work is done
        labels += label_names(path, piece[label], label, len(labels))
        members += [] if groups is None else filled(path, piece[groups], groups, "group", len(members))
    if not labels:
        raise UsageError(f"{path} has no rows")
    y = whole_numbers_where_possible(np.array(labels, dtype=object))
    together = np.array(members) if members else None
    rows = split_rows(path, y, test_share, seed, together)
    inside, outside = map(np.sort, rows)  # the order of the file, in which they are read again
    training = TextRows(path, text, inside, separator)
    test = list(TextRows(path, text, outside, separator))
    model = TextClassifier(ngrams=ngrams, stemmer=stemmer, progress=progress, random_state=seed)
    model.set_params(least_count=1 if len(inside) < 100 else 2)
    validation = None if together is None else together[inside]
    with each_warning_once():
        try:
            ours = measured("attention", _Grouped(model, validation), (training, y[inside]), (test, y[outside]))
            peer = measured("TF-IDF + logistic regression", _TfIdf(ngrams), (training, y[inside]), (test, y[outside]))
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
        model.save(folder)
        notes = tuple(_flip_note(model.counterfactuals(test)))
    return FitReport(len(inside), len(outside), ours, peer, notes)


def _flip_note(counterfactuals: Sequence[Sequence[str]]) -> Iterator[str]:
    """How many deletions change the label of half of the documents, if any number does."""
    sizes = sorted(len(tokens) or np.inf for tokens in counterfactuals)
    half = sizes[(len(sizes) - 1) // 2]
    if half < np.inf:
        tokens = "1 token" if half == 1 else f"{half} tokens"
        yield f"deleting {tokens} changes the label of half of the test documents"


@dataclass(frozen=True)
class TextRows:
    """Texts of some rows of a table, read from the file whenever they are gone through, and never all in memory."""

    path: Path
    column: str
    rows: NDArray[np.intp]  # ascending
    separator: str | None = None

    def __iter__(self) -> Iterator[str]:
        first = 0
        for piece in stream_table(self.path, [self.column], separator=self.separator):
            texts = text_values(self.path, piece[self.column], self.column, first)
            here = slice(*np.searchsorted(self.rows, [first, first + len(texts)]))
            yield from map(texts.__getitem__, (self.rows[here] - first).tolist())
            first += len(texts)


def predict_text(
    model: TextClassifier, path: Path, *, text: str = "text", separator: str | None = None
) -> pd.DataFrame:
    """Label and probabilities of each row of a table."""
    texts: list[str] = []
    for piece in stream_table(path, [text], separator=separator):
        texts += text_values(path, piece[text], text, len(texts))
    if not texts:
        raise UsageError(f"{path} has no rows")
    return predictions(model, texts, {"row": np.arange(1, len(texts) + 1)})


class _Grouped:
    """A text model whose fit is told the groups."""

    def __init__(self, model: TextClassifier, groups: Any) -> None:
        self.model, self.groups = model, groups

    def fit(self, X: Any, y: Any) -> None:
        """Train."""
        self.model.fit(X, y, groups=self.groups)
        self.classes_, self.predict, self.predict_proba = (
            self.model.classes_,
            self.model.predict,
            self.model.predict_proba,
        )


class _TfIdf:
    """The usual bag of words; of many documents a part chooses C, as in our own fit."""

    def __init__(self, ngrams: int) -> None:
        self.vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, ngrams))

    def fit(self, X: Iterable[str], y: NDArray[Any]) -> None:
        """Train."""
        features = self.vectorizer.fit_transform(X)
        self.regression = logistic_baseline()
        if len(y) <= ENOUGH_TO_CHOOSE:
            self.regression.fit(features, y)
        else:
            some = np.sort(np.random.default_rng(0).choice(len(y), ENOUGH_TO_CHOOSE, replace=False))
            C = np.ravel(self.regression.fit(features[some], y[some]).C_)[0]  # older versions repeat it for each class
            self.regression = LogisticRegression(C=float(C), max_iter=2000).fit(features, y)
        self.classes_ = self.regression.classes_

    def predict(self, X: Iterable[str]) -> NDArray[Any]:
        """Labels, (n,)."""
        return np.asarray(self.regression.predict(self.vectorizer.transform(X)))

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float64]:
        """Probabilities of the classes, (n, n_classes)."""
        return np.asarray(self.regression.predict_proba(self.vectorizer.transform(X)))
