"""A text model as it answers: scores, probabilities and reasons of documents, without what only a fit needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax

from whichtoken.checks import check_choice, check_count, check_range
from whichtoken.estimators.text.counting import check_fitted, count_documents, token_names
from whichtoken.estimators.text.validation import Choice, decide
from whichtoken.training.score_descent import Scores

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.text.explanation import Explanation
    from whichtoken.estimators.text.learning import Memory
    from whichtoken.estimators.text.tokens import Vocabulary

Array = NDArray[np.float64]


class TextModel:
    """The half of `TextClassifier` that needs no scikit-learn, which takes longer to load than a sentence to explain."""

    classes_: NDArray[Any]
    selection_: Array  # (|S|, n_queries)
    values_: Array  # (|S|, n_queries, outputs)
    bias_: Array  # (outputs,)
    log_null_: float
    choice_: Choice
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    _vocabulary: Vocabulary  # this and `vocabulary_` only after a fit on texts
    vocabulary_: tuple[str, ...]
    _statistics: tuple[Array, ...]  # by token and class: counts, shares of documents; by class: documents
    _memory: Memory | None  # for partial_fit; None with several queries or embeddings

    def __init__(
        self,
        *,
        analyzer: Callable[[str], Sequence[str]] | str | Path | None = None,
        ngrams: int = 1,
        least_count: int = 2,
        stop_words: Sequence[str] = (),
        stemmer: str | None = None,
        word_pieces: str | Path | Sequence[str] | None = None,
        sublinear: bool = True,
        idf: bool = True,
        C: float | Literal["auto"] = "auto",
        null: float | Literal["auto"] = "auto",
        loss: Literal["auto", "logistic", "squared_hinge"] = "auto",
        attention_C: float = 1.0,
        n_queries: int = 1,
        dim: int | None = None,
        max_epochs: int = 8,
        batch_size: int = 256,
        cv: Any = 5,
        min_class: int = 1,
        class_weight: dict[Any, float] | str | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.analyzer = analyzer
        self.ngrams = ngrams
        self.least_count = least_count
        self.stop_words = stop_words
        self.stemmer = stemmer
        self.word_pieces = word_pieces
        self.sublinear = sublinear
        self.idf = idf
        self.C = C
        self.null = null
        self.loss = loss
        self.attention_C = attention_C
        self.n_queries = n_queries
        self.dim = dim
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.cv = cv
        self.min_class = min_class
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def decision_function(self, X: Any) -> Array:
        """f + b: (n,) for two classes, positive for the second; otherwise (n, n_classes)."""
        outputs = self._outputs(count_documents(self, X))
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, (n,)."""
        chosen = decide(self._outputs(count_documents(self, X)))
        return np.asarray(self.classes_[chosen])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (n, n_classes), calibrated on the held-out documents of the fit."""
        return self._probabilities(self._outputs(count_documents(self, X)))

    def explain(self, X: Any) -> list[Explanation]:
        """Why each document gets its label, and what would change it; exact, without sampling."""
        from whichtoken.estimators.text.explanation import explain

        check_fitted(self)
        return explain(self, X)

    def counterfactuals(self, X: Any) -> list[list[str]]:
        """For each document the smallest set of tokens whose deletion changes its label; empty if none does."""
        from whichtoken.estimators.text.explanation import flipping_sets

        check_fitted(self)
        names = self.token_names_
        return [[names[token] for token in tokens] for tokens in flipping_sets(self, count_documents(self, X))]

    def certificates(self, X: Any) -> pd.DataFrame:
        """For each document, how many tokens must be deleted, inserted or substituted before the label can change.

        -1 says that no number can. Lower bounds for `sublinear=True`, exact numbers otherwise; in both cases fewer changes
        cannot change the label.
        """
        from whichtoken.estimators.text.explanation import certificates

        check_fitted(self)
        return certificates(self, count_documents(self, X))

    def export(self, kind: Literal["json", "sql"] = "json") -> str:
        """The scorer as JSON, or as a SQL query on a table `token_counts(document, token, count)`."""
        from whichtoken.estimators.text.export import as_json, as_sql

        check_fitted(self)
        check_choice("kind", kind, ("json", "sql"))
        return as_json(self) if kind == "json" else as_sql(self)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: arrays as safetensors, the rest as JSON."""
        from whichtoken.estimators.text.storage import save

        check_fitted(self)
        save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, analyzer: Callable[[str], Sequence[str]] | None = None) -> Self:
        """Read a model folder; runs no code from it. A model with an `analyzer` function needs it again."""
        from whichtoken.estimators.text.storage import load

        return load(cls, folder, analyzer)

    @property
    def token_names_(self) -> Sequence[str]:
        """Names of the columns: the vocabulary, the names of a DataFrame, or numbers."""
        return token_names(self)

    @property
    def scores_(self) -> Scores:
        """The trained model."""
        return Scores(self.selection_, self.values_, self.bias_, self.log_null_)

    def _check_parameters(self) -> None:
        optional = () if self.dim is None else ("dim",)
        for name in ("ngrams", "least_count", "n_queries", "max_epochs", "batch_size", "min_class", *optional):
            check_count(name, getattr(self, name), 1)
        if self.ngrams > 3:
            raise ValueError(f"ngrams={self.ngrams} must be 1, 2 or 3")
        if isinstance(self.cv, float | int):
            check_count("cv", self.cv, 2)
        check_choice("loss", self.loss, ("auto", "logistic", "squared_hinge"))
        check_range("attention_C", self.attention_C, 0.0, np.inf, include_low=True)
        for name in ("C", "null"):
            value = getattr(self, name)
            if not isinstance(value, str):
                check_range(name, value, 0.0, np.inf, include_low=name == "null")
            elif value != "auto":
                raise ValueError(f"{name}={value!r} must be 'auto' or a number above 0")

    def _amounts(self, counts: sparse.csr_array) -> sparse.csr_array:
        """What enters the softmax in place of the counts."""
        data = counts.data.astype(np.float64)
        if self.sublinear and self.dim is None:
            data += 1
            np.log2(data, out=data)
        return sparse.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)

    def _outputs(self, counts: sparse.csr_array) -> Array:
        return self.scores_.outputs(self._amounts(counts))

    def _probabilities(self, outputs: Array) -> Array:
        scaled = self.choice_.temperature * outputs
        two = len(self.classes_) == 2
        return np.hstack([expit(-scaled), expit(scaled)]) if two else np.asarray(softmax(scaled, axis=1))
