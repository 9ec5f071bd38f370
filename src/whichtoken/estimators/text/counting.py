"""From what a user gives to counts: texts by a vocabulary that is learned once, or a matrix that is checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.checks import check_sparse
from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.display.text import counted
from whichtoken.estimators.text.documents import row_blocks
from whichtoken.estimators.text.tokens import CallableTokenizer, FileTokenizer, Tokenizer, Vocabulary, WordTokenizer

if TYPE_CHECKING:
    from whichtoken.estimators.text.classifier import TextClassifier
    from whichtoken.estimators.text.model import TextModel


def learn_counts(
    model: TextClassifier, X: Any, y: Any, classes: ArrayLike | None = None
) -> tuple[sparse.csr_array, NDArray[Any]]:
    """Counts of the training documents and their labels; fixes the vocabulary and the classes of the model."""
    from sklearn.utils.validation import validate_data

    from whichtoken.estimators._labels import check_labels

    texts = texts_of(X)
    if texts is None:
        if sparse.issparse(X):
            check_sparse("X", X)
        if hasattr(model, "_vocabulary"):
            del model._vocabulary, model.vocabulary_
        counts, y = validate_data(model, X, y, accept_sparse="csr", dtype=np.float64)
        counts = _non_negative(counts)
    else:
        if y is None:
            raise ValueError("y=None: requires y to be passed, one label per document")
        model._vocabulary, counts = Vocabulary.learn(tokenizer_of(model), texts, model.ngrams, model.least_count)
        model.vocabulary_ = model._vocabulary.names
    labels = check_labels(y, counts.shape[0])
    model.classes_ = np.unique(check_labels(classes) if classes is not None else labels)
    if len(model.classes_) < 2:
        raise ValueError(f"y has one class ({model.classes_.tolist()[0]!r}); two or more classes are needed")
    return counts, labels


def check_fitted(model: TextModel) -> None:
    """Refuse a model that has learned nothing, as scikit-learn does."""
    if not hasattr(model, "selection_"):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(model)


def count_documents(model: TextModel, X: Any) -> sparse.csr_array:
    """Counts of documents of the kind that the model was fitted on."""
    check_fitted(model)
    texts = texts_of(X)
    if hasattr(model, "_vocabulary"):
        if texts is None:
            raise ValueError(f"X of type {type(X).__name__} must be a list of str, like the documents of fit")
        return model._vocabulary.count(texts)
    if texts is not None:
        raise ValueError("X holds texts, but the model was fitted on a count matrix")
    from sklearn.utils.validation import validate_data

    if sparse.issparse(X):
        check_sparse("X", X)
    return _non_negative(validate_data(model, X, accept_sparse="csr", dtype=np.float64, reset=False))


def encode_classes(y: Any, documents: int, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers of the labels among the classes, (n,)."""
    from whichtoken.estimators._labels import check_labels

    labels = check_labels(y, documents)
    strange = np.setdiff1d(labels, classes)
    if strange.size:
        raise ValueError(f"y holds {strange.tolist()[0]!r}; classes: {', '.join(map(str, classes))}")
    return np.searchsorted(classes, labels).astype(np.int64)


def leave_out_rare_classes(model: TextClassifier, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Documents (n,) of classes that are large enough for `min_class`; the others leave `classes_`."""
    names, sizes = np.unique(labels, return_counts=True)
    rare = names[sizes < model.min_class]
    model.classes_ = np.setdiff1d(model.classes_, rare)
    if len(model.classes_) < 2:
        raise ValueError(
            f"min_class={model.min_class} leaves {len(model.classes_)} of {len(names)} classes; lower it to keep at least two"
        )
    kept = ~np.isin(labels, rare)
    if not kept.all():
        shown = ", ".join(map(str, rare[:5])) + (", ..." if len(rare) > 5 else "")
        warnings.warn(
            f"min_class={model.min_class} leaves out {len(rare)} of {len(names)} classes with"
            f" {counted(int((~kept).sum()), 'document')}: {shown}",
            stacklevel=4,
        )
    return np.asarray(kept)


def inverse_document_frequency(counts: sparse.csr_array) -> NDArray[np.float64]:
    """1 + log of (1 + documents) / (1 + documents that hold the token), (|S|,)."""
    holders = np.zeros(counts.shape[1], np.int64)
    for block in row_blocks(counts):
        holders += np.bincount(block.indices, minlength=counts.shape[1])
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + holders)) + 1)


def tokenizer_of(model: TextModel) -> Tokenizer:
    """What splits the texts of a model."""
    if callable(model.analyzer):
        return CallableTokenizer(model.analyzer)
    if model.analyzer is not None:
        return FileTokenizer.read(Path(model.analyzer))
    return WordTokenizer(
        TextPipeline(word_pieces=model.word_pieces, stop_words=model.stop_words, stemmer=model.stemmer, least_count=1)
    )


def texts_of(X: Any) -> Iterable[str] | None:
    """The documents if X holds texts, in a list or a stream, None if it is something else."""
    if isinstance(X, str):
        raise ValueError(f"X={X[:30]!r} is one text; a list of texts is expected")
    if sparse.issparse(X) or getattr(X, "ndim", 1) != 1 or not hasattr(X, "__iter__"):
        return None
    if hasattr(X, "__len__"):
        if len(X) == 0:
            raise ValueError("X is empty; there must be at least one document")
        return X if any(isinstance(item, str) for item in X) else None  # the first text may be missing
    source = iter(X)
    first = next(source, None)
    if not isinstance(first, str):
        raise ValueError(f"X of type {type(X).__name__} gives {first!r} first; a stream must hold texts")
    return chain([first], source)


def token_names(model: TextModel) -> Sequence[str]:
    """Names of the columns: the vocabulary, the names of a DataFrame, or numbers."""
    if hasattr(model, "vocabulary_"):
        return model.vocabulary_
    return list(getattr(model, "feature_names_in_", map(str, range(len(model.selection_)))))


def _non_negative(counts: Any) -> sparse.csr_array:
    matrix = sparse.csr_array(counts)
    if matrix.data.min(initial=0) < 0:
        raise ValueError(
            f"Negative values in data passed to TextClassifier: X holds {matrix.data.min()}, counts are >= 0"
        )
    matrix.sum_duplicates()
    if not matrix.data.all():  # a stored zero is no occurrence
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix
