"""Classify documents with one attention query, and say exactly which tokens decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from whichtoken.estimators._fitted_summary import FittedSummary
from whichtoken.estimators._labels import checked_clusters
from whichtoken.estimators.text.counting import (
    count_documents,
    encode_classes,
    inverse_document_frequency,
    learn_counts,
    leave_out_rare_classes,
)
from whichtoken.estimators.text.documents import CELLS, Documents
from whichtoken.estimators.text.importance import strongest_tokens, token_statistics
from whichtoken.estimators.text.learning import LearningSettings, fit_documents, update_model
from whichtoken.estimators.text.model import TextModel
from whichtoken.estimators.text.validation import held_out_splits
from whichtoken.estimators.text.values import SELECTION_RIDGE
from whichtoken.training.score_descent import Scores

if TYPE_CHECKING:
    import pandas as pd


Array = NDArray[np.float64]


class TextClassifier(FittedSummary, TextModel, ClassifierMixin, BaseEstimator):
    """Documents to labels by the one-layer `<cls>` attention model, on token counts.

    Every token s has a selection score a_s, which decides how much attention it gets, and a value g_s, which says what it
    speaks for: f = sum_s q_s g_s + b with q_s = amount_s e^{a_s} / (c + sum_t amount_t e^{a_t}). The null token's mass c takes
    the attention that a short document has no tokens for, so that a few words do not make a sure decision. With one query the
    *decision* is that of a linear bag of words; what attention adds is normalised confidence and exact reasons.

    Attention starts from inverse document frequencies, the values are solved exactly for it, then attention moves by one Newton
    step unless held-out documents object, and the values follow. More than two classes are learned one against the rest.

    Parameters
    ----------
    analyzer : callable, path or None, optional
        Splits a document: None for the built-in words, a function from a text to a list of tokens, or a Hugging Face
        `tokenizers` JSON file.
    ngrams : int, default=1
        1, 2 or 3: also pairs, also triples of neighbouring tokens.
    least_count : int, default=2
        Tokens that occur less often in the training documents are left out.
    stop_words, stemmer, word_pieces : sequence of str, str, path
        For the built-in words: words to drop, language of the Snowball stemmer, WordPiece vocabulary file.
    sublinear : bool, default=True
        A count c enters as log2(1 + c); otherwise as c.
    idf : bool, default=True
        Selection scores start from, and are pulled to, the log of the inverse document frequency; otherwise to 0.
    C : float or "auto", default="auto"
        Inverse strength of the ridge on the values; "auto" takes the best of a few on held-out documents.
    null : float or "auto"
        Mass of the null token, in units of the mean mass of a training document; 0 for none.
    loss : "logistic", "squared_hinge" or "auto"
        Of the values; "auto" is logistic for two classes and the better one on held-out documents for more.
    attention_C : float
        Inverse strength of the ridge on the selection scores; with 0 attention stays where it starts.
    n_queries : int
        Attention heads. Two or more, which are trained by Adam, leave the linear class, and with it the exact counterfactuals.
    dim : int or None
        Train embeddings of this dimension as in the paper: two classes, one query, plain counts, no null token or ridge.
    max_epochs, batch_size : int
        Length of the training of several queries or embeddings.
    cv : int, splitter or list of splits
        Folds of the validation; of a number, one fold is enough from 4000 documents on.
    min_class : int
        Classes with fewer documents are left out, with a warning. Those that have fewer than `cv` are learned, but not judged.
    class_weight : dict, "balanced" or None
        Weights of the classes; 1 for all by default.
    n_jobs, verbose : int
        Threads of the fit; 1: a line for every trial of the validation, on standard error.
    random_state : int, RandomState or None
        Seed of the validation and of the training.

    Attributes
    ----------
    classes_ : (n_classes,)
    selection_ : (|S|, n_queries)
        a_s.
    values_ : (|S|, n_queries, outputs)
        g_s; one output for two classes, otherwise one per class.
    bias_ : (outputs,)
    log_null_ : float
        log c.
    vocabulary_ : tuple of str, only after a fit on texts
    choice_ : Choice
        C, loss, null token, whether attention moved, temperature, and the held-out losses.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> texts = ["a good film", "a bad film", "good fun", "bad acting"] * 5
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-", "+", "-"] * 5)
    >>> model.predict(["a good story"]).tolist(), model.counterfactuals(["a good film"])
    (['+'], [['good']])
    """

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Learn from documents.

        Parameters
        ----------
        X : list of str, or counts (n, |S|), dense or sparse
            Also any stream of str, such as a generator; texts are read once and only counts are kept.
        y : (n,)
            Labels of two or more kinds; looked at after all texts are read.
        sample_weight : (n,), optional
            A weight of 2 is the document twice.
        groups : (n,), optional
            Documents of one group (the reviews of a film, the mails of a thread) are never on both sides of a validation.
        """
        return self._fit(X, y, None, sample_weight, groups)

    def _fit(self, X: Any, y: ArrayLike, classes: ArrayLike | None, sample_weight: Any, groups: Any) -> Self:
        self._check_parameters()
        counts, labels = learn_counts(self, X, y, classes)
        weights = _check_sample_weight(sample_weight, counts, dtype=np.float64, ensure_non_negative=True)
        together = checked_clusters(groups, counts.shape[0])
        if self.min_class > 1:
            kept = leave_out_rare_classes(self, labels)
            counts, labels, weights = counts[kept], labels[kept], weights[kept]
            together = None if together is None else together[kept]
        codes = encode_classes(labels, counts.shape[0], self.classes_)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        if self.dim is not None:
            self._fit_embeddings(counts, codes, sample_weight, together, rng)
        else:
            start = inverse_document_frequency(counts) if self.idf else np.ones(counts.shape[1])
            documents = self._documents(counts, codes, weights, start)
            scores, self.choice_, self._memory = fit_documents(documents, together, self._settings(), rng)
            self._keep(scores, np.log(start)[:, None])
        self._statistics = token_statistics(counts, codes, len(self.classes_))
        return self

    def _fit_embeddings(
        self, counts: sparse.csr_array, labels: NDArray[np.int64], weights: Any, groups: Any, rng: np.random.Generator
    ) -> None:
        from whichtoken.estimators.text.embeddings import fit_embeddings

        assert self.dim is not None
        if len(self.classes_) > 2 or self.n_queries > 1 or weights is not None or self.class_weight is not None:
            raise ValueError(f"dim={self.dim} is for two classes, one query and equal weights; leave dim=None for more")
        splits = held_out_splits(labels, groups, self.cv, int(rng.integers(2**31)))
        scores, self.choice_ = fit_embeddings(counts, labels, splits, self.dim, self.max_epochs, rng)
        self._keep(scores)
        self._memory = None

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn from some more documents; the first call is a `fit`, which fixes vocabulary, classes, attention and C.

        Every value is held to where it is as firmly as the documents so far have determined it, so that a batch counts for as
        many documents as it has, and many batches lead to where a fit on all of them does. Nothing of the documents is kept.
        """
        if not hasattr(self, "selection_"):
            return self._fit(X, y, classes, sample_weight, None)
        if self._memory is None:
            raise ValueError(
                f"n_queries={self.n_queries}, dim={self.dim}: only a model with one query and dim=None learns from more"
                " documents"
            )
        counts = count_documents(self, X)
        labels = encode_classes(y, counts.shape[0], self.classes_)
        weights = _check_sample_weight(sample_weight, counts, dtype=np.float64, ensure_non_negative=True)
        documents, seen = self._documents(counts, labels, weights), float(self._statistics[2].sum())
        state = self.scores_, self.choice_, self._memory
        scores, self.choice_, self._memory = update_model(*state, documents, seen, self.n_jobs)
        self._keep(scores)
        new = token_statistics(counts, labels, len(self.classes_))
        self._statistics = tuple(a + b for a, b in zip(self._statistics, new, strict=True))
        return self

    def token_importance(self, X: Any = None, y: Any = None, repeats: int = 0, level: float = 0.95) -> pd.DataFrame:
        """A table by token: count, signed frequency, posterior difference, value and selection score.

        With documents X, y and `repeats` > 0 the fit is repeated on so many bootstrap samples of them, and every number gets
        the columns `_low` and `_high` of an interval. More than two classes: one block of rows per class against the rest.
        """
        from whichtoken.estimators.text.importance import bootstrap_importance, importance

        check_is_fitted(self)
        return bootstrap_importance(self, X, y, repeats, level) if repeats else importance(self)

    def _fitted_facts(self) -> dict[str, object]:
        return {**super()._fitted_facts(), "strongest tokens": ", ".join(strongest_tokens(self))}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.string = True
        tags.classifier_tags.poor_score = True  # on blobs, which are no counts
        return tags

    def _settings(self) -> LearningSettings:
        return LearningSettings(
            self.C, self.null, self.loss, SELECTION_RIDGE / self.attention_C if self.attention_C else np.inf,
            self.n_queries, self.max_epochs, self.batch_size, self.cv, self.n_jobs, bool(self.verbose),
        )  # fmt: skip

    def _documents(
        self, counts: sparse.csr_array, labels: NDArray[np.int64], weights: Array, start: Array | None = None
    ) -> Documents:
        """What a fit sees: the start of the attention is part of the amounts."""
        amounts = self._amounts(counts)
        if start is not None:
            for first in range(0, len(amounts.data), CELLS):
                cells = slice(first, first + CELLS)
                amounts.data[cells] *= start[amounts.indices[cells]]
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, self.classes_[labels])
        return Documents(amounts, labels, weights, len(self.classes_))

    def _keep(self, scores: Scores, start: Array | float = 0.0) -> None:
        """Make a trained model one's own; its selection scores are relative to those of the start."""
        self.selection_, self.values_, self.bias_ = scores.selection + start, scores.values, scores.bias
        self.log_null_ = float(scores.log_null)
