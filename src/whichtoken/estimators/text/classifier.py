"""Classify documents with one attention query, and say exactly which tokens decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whichtoken.checks import check_count, check_range
from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.estimators._labels import check_labels
from whichtoken.estimators.text.tokens import (
    CallableTokenizer,
    FileTokenizer,
    Tokenizer,
    Vocabulary,
    WordTokenizer,
)
from whichtoken.estimators.text.validation import DEFAULT, GRID, Choice, Documents, choose, held_out_splits, row_blocks
from whichtoken.progress import terminal_bar
from whichtoken.training.score_descent import ScoreDescent, Scores, schedule

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.text.explanation import Explanation

Array = NDArray[np.float64]

# of |a|^2 / 2, divided by the number of documents; a is on a logarithmic scale, so one number fits all vocabularies
SELECTION_RIDGE = 25.0
CELLS = 1 << 22  # counts worked on together, where that saves temporary arrays
ENOUGH_TO_CHOOSE = 100_000  # documents that the validation looks at: C is measured per document, so it carries over


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Documents to labels by the one-layer `<cls>` attention model, on token counts.

    Every token s has a selection score a_s, which decides how much attention it gets, and a value g_s, which says what it
    speaks for: f = sum_s q_s g_s + b with q_s proportional to (amount of s) e^{a_s}. With one query the *decision* is that
    of a linear bag of words; what attention adds is normalised confidence and exact reasons.

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
    attention_C : float, default=1.0
        Inverse strength of the ridge on the selection scores, 1 by default; near 0 attention stays where it starts.
    n_queries : int, default=1
        Attention heads. Two or more leave the linear class, and with it the exact counterfactuals.
    dim : int or None, optional
        Train embeddings of this dimension by AdamW, as in the paper, instead of scores: two classes, one query, plain
        counts, without ridges, weights or idf. Slower and a little worse; for comparison with the theory.
    max_epochs, batch_size : int
        Length of the training; small data sets get more epochs of smaller batches.
    early_stopping : bool, default=True
        End fits whose held-out loss no longer falls.
    validation_fraction : float, default=0.2
        Share of the documents held out to choose C, the epochs and the temperature of the probabilities.
    class_weight : dict[Any, float] or str, optional
        Weights of the classes, 1 by default; "balanced" gives rare classes more.
    progress : bool, default=False
        Show a progress bar.
    random_state : int, RandomState or None, optional
        Seed for the held-out documents and the training.

    Attributes
    ----------
    classes_ : (n_classes,)
    selection_ : (|S|, n_queries)
        a_s.
    values_ : (|S|, n_queries, outputs)
        g_s; one output for two classes, otherwise one per class.
    bias_ : (outputs,)
    vocabulary_ : tuple of str
        Only after a fit on texts.
    choice_ : Choice
        C, share of the training that is run, temperature, and the held-out losses.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> texts = ["a good film", "good plot, good cast", "a bad film", "bad plot, bad cast"] * 10
    >>> model = TextClassifier(random_state=0).fit(texts, [1, 1, 0, 0] * 10)
    >>> model.predict(["a good cast"]).tolist()
    [1]
    >>> model.explain(["a good cast"])[0].reasons[0].token
    'good'
    """

    _vocabulary: Vocabulary  # only after a fit on texts
    vocabulary_: tuple[str, ...]
    _statistics: tuple[Array, ...]  # by token and class: counts, shares of documents; by class: documents

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
        attention_C: float = 1.0,
        n_queries: int = 1,
        dim: int | None = None,
        max_epochs: int = 8,
        batch_size: int = 256,
        early_stopping: bool = True,
        validation_fraction: float = 0.2,
        class_weight: dict[Any, float] | str | None = None,
        progress: bool = False,
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
        self.attention_C = attention_C
        self.n_queries = n_queries
        self.dim = dim
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.progress = progress
        self.random_state = random_state

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
        groups : (n,), optional
            Documents of one group (the reviews of a film, the mails of a thread) are never on both sides of a validation.
        """
        self._check_parameters()
        counts, labels = self._learn_counts(X, y)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        if self.dim is not None:
            return self._fit_embeddings(counts, labels, sample_weight, groups, rng)
        documents = self._documents(counts, labels, sample_weight)
        self.choice_ = self._choose(documents, groups, int(rng.integers(2**31)))
        self._descent = self._start(documents, self.choice_.C, rng)
        epochs, batch = schedule(len(labels), self.max_epochs, self.batch_size)
        self.n_iter_ = int(np.ceil(self.choice_.share * epochs))
        with _progress(self.progress, self.n_iter_) as enough:
            self._descent.fit(documents.amounts, documents.targets, documents.weights, epochs, batch, enough)
        self._keep_scores()
        self._keep_statistics(counts, labels)
        return self

    def _fit_embeddings(
        self, counts: sparse.csr_array, labels: NDArray[np.int64], weights: Any, groups: Any, rng: np.random.Generator
    ) -> Self:
        from whichtoken.estimators.text.embeddings import embedding_choice, embedding_scores

        assert self.dim is not None
        if len(self.classes_) > 2 or self.n_queries > 1 or weights is not None or self.class_weight is not None:
            raise ValueError(f"dim={self.dim} is for two classes, one query and equal weights; leave dim=None for more")
        splits = held_out_splits(labels, groups, self.validation_fraction, int(rng.integers(2**31)))
        self.choice_ = embedding_choice(counts, labels, splits, self.dim, self.max_epochs, rng)
        scores = embedding_scores(counts, labels, self.dim, self.max_epochs, rng)
        self.selection_, self.values_, self.bias_ = scores.selection, scores.values, scores.bias
        self.n_iter_ = self.max_epochs
        self._keep_statistics(counts, labels)
        return self

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Go once through some more documents; the first call fixes vocabulary and classes.

        Without validation: C is 3 unless given, probabilities are not calibrated.
        """
        self._check_parameters()
        if self.dim is not None:
            raise ValueError(f"dim={self.dim}: embeddings are trained by fit only; leave dim=None for partial_fit")
        first = not hasattr(self, "_descent")
        if first:
            counts, labels = self._learn_counts(X, y, classes)
            documents = self._documents(counts, labels, sample_weight)
            self.choice_ = Choice(DEFAULT if self.C == "auto" else float(self.C), 1.0, 1.0, {})
            rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
            self._descent = self._start(documents, self.choice_.C, rng)
            self.n_iter_ = 0
        else:
            counts = self._counts(X)
            labels = self._encode(y, counts.shape[0])
            documents = self._documents(counts, labels, sample_weight)
        _, batch = schedule(len(labels), 1, self.batch_size)
        self._descent.epoch(documents.amounts, documents.targets, documents.weights, batch)
        self.n_iter_ += 1
        self._keep_scores()
        self._keep_statistics(counts, labels, add=not first)
        return self

    def decision_function(self, X: Any) -> Array:
        """f + b: (n,) for two classes, positive for the second; otherwise (n, n_classes)."""
        outputs = self._outputs(self._counts(X))
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, (n,)."""
        chosen = decide(self._outputs(self._counts(X)))
        return np.asarray(self.classes_[chosen])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (n, n_classes), calibrated on the held-out documents of the fit."""
        return self._probabilities(self._outputs(self._counts(X)))

    def token_importance(self, X: Any = None, y: Any = None, repeats: int = 0, level: float = 0.95) -> pd.DataFrame:
        """A table by token: count, signed frequency, posterior difference, value and selection score.

        With documents X, y and `repeats` > 0 the fit is repeated on so many bootstrap samples of them, and every number gets
        the columns `_low` and `_high` of an interval. More than two classes: one block of rows per class against the rest.
        """
        from whichtoken.estimators.text.importance import bootstrap_importance, importance

        check_is_fitted(self)
        return bootstrap_importance(self, X, y, repeats, level) if repeats else importance(self)

    def explain(self, X: Any) -> list[Explanation]:
        """Why each document gets its label, and what would change it; exact, without sampling."""
        from whichtoken.estimators.text.explanation import explain

        check_is_fitted(self)
        return explain(self, X)

    def counterfactuals(self, X: Any) -> list[list[str]]:
        """For each document the smallest set of tokens whose deletion changes its label; empty if none does."""
        from whichtoken.estimators.text.explanation import flipping_sets

        check_is_fitted(self)
        names = self.token_names_
        return [[names[token] for token in tokens] for tokens in flipping_sets(self, self._counts(X))]

    def certificates(self, X: Any) -> pd.DataFrame:
        """For each document, how many tokens must be deleted, inserted or substituted before the label can change.

        -1 says that no number can. Lower bounds for `sublinear=True`, exact numbers otherwise; in both cases fewer changes
        cannot change the label.
        """
        from whichtoken.estimators.text.explanation import certificates

        check_is_fitted(self)
        return certificates(self, self._counts(X))

    def export(self, kind: Literal["json", "sql"] = "json") -> str:
        """The scorer as JSON, or as a SQL query on a table `token_counts(document, token, count)`."""
        from whichtoken.estimators.text.export import as_json, as_sql

        check_is_fitted(self)
        if kind not in ("json", "sql"):
            raise ValueError(f"kind={kind!r} must be 'json' or 'sql'")
        return as_json(self) if kind == "json" else as_sql(self)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: arrays as safetensors, the rest as JSON."""
        from whichtoken.estimators.text.storage import save

        check_is_fitted(self)
        save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, analyzer: Callable[[str], Sequence[str]] | None = None) -> TextClassifier:
        """Read a model folder; runs no code from it. A model with an `analyzer` function needs it again."""
        from whichtoken.estimators.text.storage import load

        return load(folder, analyzer)

    @property
    def token_names_(self) -> Sequence[str]:
        """Names of the columns: the vocabulary, the names of a DataFrame, or numbers."""
        if hasattr(self, "vocabulary_"):
            return self.vocabulary_
        return list(getattr(self, "feature_names_in_", map(str, range(len(self.selection_)))))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.string = True
        tags.classifier_tags.poor_score = True  # on blobs: attention shares do not see how long a document is
        return tags

    def _check_parameters(self) -> None:
        for name in ("ngrams", "least_count", "n_queries", "max_epochs", "batch_size"):
            check_count(name, getattr(self, name), 1)
        if self.ngrams > 3:
            raise ValueError(f"ngrams={self.ngrams} must be 1, 2 or 3")
        if self.dim is not None:
            check_count("dim", self.dim, 1)
        check_range("validation_fraction", self.validation_fraction, 0.0, 1.0)
        check_range("attention_C", self.attention_C, 0.0, np.inf)
        if isinstance(self.C, str):
            if self.C != "auto":
                raise ValueError(f"C={self.C!r} must be 'auto' or a number above 0")
        else:
            check_range("C", self.C, 0.0, np.inf)

    def _tokenizer(self) -> Tokenizer:
        if callable(self.analyzer):
            return CallableTokenizer(self.analyzer)
        if self.analyzer is not None:
            return FileTokenizer.read(Path(self.analyzer))
        return WordTokenizer(
            TextPipeline(word_pieces=self.word_pieces, stop_words=self.stop_words, stemmer=self.stemmer, least_count=1)
        )

    def _learn_counts(
        self, X: Any, y: Any, classes: ArrayLike | None = None
    ) -> tuple[sparse.csr_array, NDArray[np.int64]]:
        """Counts of the training documents and numbers of their labels; fixes vocabulary and classes."""
        texts = _texts(X)
        if texts is None:
            if hasattr(self, "_vocabulary"):
                del self._vocabulary, self.vocabulary_
            counts, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
            counts = _non_negative(counts)
        else:
            if y is None:
                raise ValueError("y=None: requires y to be passed, one label per document")
            self._vocabulary, counts = Vocabulary.learn(self._tokenizer(), texts, self.ngrams, self.least_count)
            self.vocabulary_ = self._vocabulary.names
        labels = check_labels(y, counts.shape[0])
        self.classes_ = np.unique(check_labels(classes) if classes is not None else labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class ({self.classes_.tolist()[0]!r}); two or more classes are needed")
        holders = np.zeros(counts.shape[1], np.int64)  # documents that hold each token
        for block in row_blocks(counts):
            holders += np.bincount(block.indices, minlength=counts.shape[1])
        idf = np.log((1 + counts.shape[0]) / (1 + holders)) + 1
        self._start_weight = idf if self.idf else np.ones(counts.shape[1])
        return counts, self._encode(labels, counts.shape[0])

    def _encode(self, y: Any, documents: int) -> NDArray[np.int64]:
        labels = check_labels(y, documents)
        strange = np.setdiff1d(labels, self.classes_)
        if strange.size:
            raise ValueError(f"y holds {strange.tolist()[0]!r}; classes: {', '.join(map(str, self.classes_))}")
        return np.searchsorted(self.classes_, labels).astype(np.int64)

    def _counts(self, X: Any) -> sparse.csr_array:
        """Counts of documents of the kind that the model was fitted on."""
        check_is_fitted(self)
        texts = _texts(X)
        if hasattr(self, "_vocabulary"):
            if texts is None:
                raise ValueError(f"X of type {type(X).__name__} must be a list of str, like the documents of fit")
            return self._vocabulary.count(texts)
        if texts is not None:
            raise ValueError("X holds texts, but the model was fitted on a count matrix")
        return _non_negative(validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False))

    def _amounts(self, counts: sparse.csr_array) -> sparse.csr_array:
        """What enters the softmax in place of the counts."""
        data = counts.data.astype(np.float64)
        if self.sublinear and self.dim is None:
            data += 1
            np.log2(data, out=data)
        return sparse.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)

    def _documents(self, counts: sparse.csr_array, labels: NDArray[np.int64], sample_weight: Any) -> Documents:
        """What a fit sees: the start of the selection scores is part of the amounts, so that the ridge pulls to it."""
        amounts = self._amounts(counts)
        for first in range(0, len(amounts.data), CELLS):
            cells = slice(first, first + CELLS)
            amounts.data[cells] *= self._start_weight[amounts.indices[cells]]
        weights = _check_sample_weight(sample_weight, amounts, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, self.classes_[labels])
        return Documents(amounts, labels, weights / weights.mean(), len(self.classes_))

    def _choose(self, documents: Documents, groups: Any, seed: int) -> Choice:
        if len(documents.labels) > ENOUGH_TO_CHOOSE:
            rows = np.sort(np.random.default_rng(seed).choice(len(documents.labels), ENOUGH_TO_CHOOSE, replace=False))
            documents = documents.part(rows)
            groups = None if groups is None else np.asarray(groups)[rows]
        splits = held_out_splits(documents.labels, groups, self.validation_fraction, seed)
        if not splits:  # too few documents to hold any out
            return Choice(DEFAULT if self.C == "auto" else float(self.C), 1.0, 1.0, {})
        grid = GRID if self.C == "auto" else (float(self.C),)

        def descent(part: Documents, C: float) -> ScoreDescent:
            return self._start(part, C, np.random.default_rng(seed))

        return choose(documents, descent, grid, splits, self.max_epochs, self.batch_size, self.early_stopping)

    def _start(self, documents: Documents, C: float, rng: np.random.Generator) -> ScoreDescent:
        n, tokens = documents.amounts.shape
        return ScoreDescent(
            tokens,
            SELECTION_RIDGE / (n * self.attention_C),
            documents.concentration / (n * C),
            rng,
            queries=self.n_queries,
            outputs=1 if documents.classes == 2 else documents.classes,
        )

    def _keep_scores(self) -> None:
        scores = self._descent.scores
        self.selection_ = scores.selection + np.log(self._start_weight)[:, None]
        self.values_, self.bias_ = scores.values, scores.bias

    def _keep_statistics(self, counts: sparse.csr_array, labels: NDArray[np.int64], add: bool = False) -> None:
        """Counts and per-document shares by class, all that `token_importance` needs of the training documents."""
        tokens, classes = counts.shape[1], len(self.classes_)
        if not add:
            self._statistics = np.zeros((tokens, classes)), np.zeros((tokens, classes)), np.zeros(classes)
        first = 0
        for block in row_blocks(counts):
            members = np.eye(classes)[labels[first : first + block.shape[0]]]  # (n, classes)
            lengths = block.sum(axis=1)
            shares = sparse.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ block
            found = block.T @ members, shares.T @ members, members.sum(axis=0)
            self._statistics = tuple(a + b for a, b in zip(self._statistics, found, strict=True))
            first += block.shape[0]

    @property
    def scores_(self) -> Scores:
        """The trained model."""
        return Scores(self.selection_, self.values_, self.bias_)

    def _outputs(self, counts: sparse.csr_array) -> Array:
        return self.scores_.outputs(self._amounts(counts))

    def _probabilities(self, outputs: Array) -> Array:
        scaled = self.choice_.temperature * outputs
        if len(self.classes_) == 2:
            return np.hstack([expit(-scaled), expit(scaled)])
        return np.asarray(softmax(scaled, axis=1))


def decide(outputs: Array) -> NDArray[np.int64]:
    """Number of the class of each row of outputs."""
    return np.asarray(outputs[:, 0] > 0, dtype=np.int64) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def _texts(X: Any) -> Iterable[str] | None:
    """The documents if X holds texts, in a list or a stream, None if it is something else."""
    if isinstance(X, str):
        raise ValueError(f"X={X[:30]!r} is one text; a list of texts is expected")
    if sparse.issparse(X) or getattr(X, "ndim", 1) != 1 or not hasattr(X, "__iter__"):
        return None
    source = iter(X)
    first = next(source, None)
    if hasattr(X, "__len__"):
        return X if isinstance(first, str) else None
    if not isinstance(first, str):
        raise ValueError(f"X of type {type(X).__name__} gives {first!r} first; a stream must hold texts")
    return chain([first], source)


def _non_negative(counts: Any) -> sparse.csr_array:
    matrix = sparse.csr_array(counts)
    if matrix.data.min(initial=0) < 0:
        raise ValueError(
            f"Negative values in data passed to TextClassifier: X holds {matrix.data.min()}, counts are >= 0"
        )
    matrix.sum_duplicates()
    return matrix


@contextmanager
def _progress(shown: bool, epochs: int) -> Iterator[Callable[[int], bool]]:
    """Says after each epoch whether it was the last one, on a bar if wanted."""
    with terminal_bar(epochs if shown else 0, "training", "") as update:

        def enough(epoch: int) -> bool:
            update(completed=epoch + 1)
            return epoch + 1 >= epochs

        yield enough
