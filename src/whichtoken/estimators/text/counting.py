"""Texts to counts by a vocabulary that is learned once, or a matrix that is checked; and back to characters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken import __version__
from whichtoken.attention import pool_weights
from whichtoken.checks import check_sparse
from whichtoken.datasets.duplicates import band_hashes, duplicate_texts, groups_of, text_signatures
from whichtoken.datasets.text_pipeline import TextPipeline
from whichtoken.datasets.token_counts import NGramTable, TokenSequences, add_tallies, frequent_ngrams
from whichtoken.datasets.word_split import Places, text_chunks
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError
from whichtoken.estimators.common import is_partitioned
from whichtoken.estimators.text.blocks import BLOCK, DaskRows, compute_for_fit, merged, sum_blocks
from whichtoken.reading import read_text, readable

if TYPE_CHECKING:
    from whichtoken.datasets.tokenizer_process import Encoded
    from whichtoken.datasets.word_vectors import WordVectors
    from whichtoken.estimators.text.classifier import TextClassifier
    from whichtoken.estimators.text.model import TextModel

Array = NDArray[np.float64]
Method = TypeVar("Method", bound=Callable[..., Any])

CELLS = 1 << 22  # counts worked on together, where that saves temporary arrays
MANY = 100  # distinct documents from which on copies do not count for min_df


@dataclass(frozen=True, eq=False)
class Documents:
    """Amounts include the start of the attention, so that selection scores start from 0 and a ridge pulls them there."""

    amounts: sparse.csr_array | Amounts  # (n, |S|)
    labels: NDArray[
        Any
    ]  # number of the class, (n,); 0 or 1 for each of several labels, (n, k); or a number to learn, (n,)
    weights: Array  # (n,)
    classes: int
    vectors: NDArray[np.float32] | None = None  # of the tokens, (|S|, dim)
    columns: NDArray[np.float32] | None = None  # beside the tokens, of mean 0 and variance 1, (n, k)

    @property
    def outputs(self) -> int:
        """One for two classes or a number, otherwise one per class or label."""
        return 1 if self.labels.ndim == 1 and self.classes == 2 else self.classes

    @property
    def mean_mass(self) -> float:
        """Mean over documents of the sum of their amounts: the unit of the null token."""
        if isinstance(self.amounts, DaskRows):
            return float(self.amounts.sum(lambda part: part.sum(axis=1).sum()) / len(self.labels)) or 1.0
        # of all rows at once: sums of blocks would depend on the size of a block in the last digits
        firsts = range(0, self.amounts.shape[0], BLOCK)
        return float(np.mean(np.concatenate([self.amounts[i : i + BLOCK].sum(axis=1) for i in firsts]))) or 1.0

    def part(self, rows: NDArray[np.int64]) -> Documents:
        """Some of them."""
        columns = None if self.columns is None else self.columns[rows]
        return Documents(self.amounts[rows], self.labels[rows], self.weights[rows], self.classes, self.vectors, columns)


@dataclass(frozen=True, eq=False)
class Amounts:
    """What enters the softmax in place of the counts of documents, made of some rows when it is needed.

    Twice in a fit it is needed of all, and it would take as much memory as the attention that is solved with in between.
    """

    counts: sparse.csr_array  # (n, |S|)
    logarithmic: bool
    start: Array | None = None  # of the attention, a factor, (|S|,)

    @property
    def shape(self) -> tuple[int, int]:
        """Documents and tokens."""
        return self.counts.shape  # type: ignore[no-any-return]

    @property
    def indices(self) -> NDArray[Any]:
        """As of the counts."""
        return self.counts.indices  # type: ignore[no-any-return]

    @property
    def indptr(self) -> NDArray[Any]:
        """As of the counts."""
        return self.counts.indptr  # type: ignore[no-any-return]

    def __getitem__(self, rows: Any) -> sparse.csr_array:
        """Some rows of the matrix."""
        return amounts_of(self.counts[rows], self.logarithmic, self.start)


def attention_shares(amounts: sparse.csr_array | Amounts, selection: Array, log_null: float) -> sparse.csr_array:
    """Attention of every token of every document, (n, queries * |S|): the features of the values."""
    heads = []
    for scores in np.ascontiguousarray(selection.T):
        shares, filled = np.empty(len(amounts.indices)), 0
        for first in range(0, amounts.shape[0], BLOCK):
            part = amounts[first : first + BLOCK]
            cells = slice(filled, filled + len(part.data))
            shares[cells] = pool_weights(scores, part.indptr, part.data, log_null, tokens=part.indices)
            filled = cells.stop
        heads.append(sparse.csr_array((shares, amounts.indices, amounts.indptr), shape=amounts.shape))
    return heads[0] if len(heads) == 1 else sparse.csr_array(sparse.hstack(heads, format="csr"))


def amounts_of(counts: sparse.csr_array, logarithmic: bool, start: Array | None = None) -> sparse.csr_array:
    """What enters the softmax in place of the counts, with the start of the attention, (|S|,), as a factor."""
    data = counts.data.astype(np.float64)
    if logarithmic:
        data += 1
        np.log2(data, out=data)
    for first in range(0, len(data) if start is not None else 0, CELLS):
        cells = slice(first, first + CELLS)
        data[cells] *= start[counts.indices[cells]]  # type: ignore[index]
    return sparse.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)


class Tokenizer(Protocol):
    """What splits texts: `TextPipeline` for the built-in words, or one of the classes below."""

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The same with their places in the texts."""


@dataclass(frozen=True)
class CallableTokenizer:
    """Any function from a text to a list of strings; a token is looked for in the text, from left to right."""

    split: Callable[[str], Sequence[str]]

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        return _named([list(map(str, self.split(text))) for text in chunk] for chunk in text_chunks(texts))

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """Tokens and places; one that does not stand there literally gets the place where the last one ended."""
        rows = [list(map(str, self.split(text))) for text in texts]
        spans = [span for text, row in zip(texts, rows, strict=True) for span in _look_for(row, text)]
        return _named([rows]), Places(*np.array(spans, np.int64).reshape(-1, 2).T)


def _encode(tokenizer: str, chunks: Iterable[Sequence[str]], places: bool = False) -> Iterator[Encoded]:
    """Encode chunks of texts by a tokenizers file, in a process that is only loaded where there is such a file."""
    from whichtoken.datasets.tokenizer_process import encode_texts

    return encode_texts(tokenizer, chunks, places=places)


@dataclass(frozen=True)
class FileTokenizer:
    """A `tokenizer.json` of the Hugging Face `tokenizers` library."""

    json: str  # what the file holds

    @classmethod
    def read(cls, path: Path) -> FileTokenizer:
        """From a file."""
        with readable(path, "a tokenizers file"):
            return cls.parse(read_text(path))

    @classmethod
    def parse(cls, json: str) -> FileTokenizer:
        """From what such a file holds."""
        if not isinstance(json, str):
            raise ValueError(f"a tokenizers file is a text, not {type(json).__name__}")
        try:
            list(_encode(json, []))
        except UsageError as error:  # the caller knows which file it is
            raise ValueError(str(error)) from error
        return cls(json)

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        return self._sequences(_encode(self.json, text_chunks(texts)))

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The tokens with their places."""
        found = list(_encode(self.json, [texts], places=True))
        return self._sequences(found), Places(found[0].starts, found[0].stops)

    def _sequences(self, found: Iterable[Encoded]) -> TokenSequences:
        """Numbered by their first appearance: the file's own ids may be as large as it likes."""
        numbers: dict[int, int] = {}
        names: list[str] = []
        ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for part in found:
            distinct, places = np.unique(part.ids, return_inverse=True)
            new = [token for token in distinct.tolist() if token not in numbers]
            numbers |= zip(new, range(len(numbers), len(numbers) + len(new)), strict=True)
            names += [part.names[token] for token in new]
            own = np.array([numbers[token] for token in distinct.tolist()], np.int32)
            ids.append(own[places])
            lengths.append(part.lengths)
        return TokenSequences(np.concatenate(ids), np.concatenate(lengths), names)


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of n-grams: counts them in texts and finds them there."""

    tokenizer: Tokenizer
    names: tuple[str, ...]  # the tokens of an n-gram are joined by a space
    table: NGramTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", NGramTable(self.names))

    @classmethod
    def learn(
        cls, tokenizer: Tokenizer, texts: Iterable[str], ngrams: int, min_df: int, vectors: WordVectors | None = None
    ) -> tuple[Vocabulary, sparse.csr_array, NDArray[np.intp]]:
        """Keep what stands in enough texts or has a vector; also the counts of the texts, and groups of copies.

        With vectors the counts have one more column, which stands for all words that have a vector and are in no text.
        """
        sequences: Any = DaskTokens.of(tokenizer, texts) if is_partitioned(texts) else tokenizer.tokens(texts)
        distributed = isinstance(sequences, DaskTokens)
        if isinstance(tokenizer, TextPipeline):
            tokenizer.check_language(sequences)
        copies = sequences.copies() if distributed else duplicate_texts(sequences)[1]
        first = np.unique(copies, return_index=True)[1]
        # copies count once: else each word of a text that stands there twice would be one of two texts
        counted_in = sequences.rows(first) if MANY <= len(first) < len(copies) else sequences
        names = counted_in.frequent(ngrams, min_df, by_text=True, reach=getattr(tokenizer, "reach", None))
        if not sequences.occurrences.any():
            raise ValueError(f"none of {pluralize(len(copies), 'document')} contains a token; check the documents")
        if not names:
            raise ValueError(f"min_df={min_df} leaves no token of {len(copies)} documents; lower it")
        if vectors is not None:
            words, alone = sequences.names, token_vectors(tokenizer, vectors)[0]
            others = [word for word in words if word not in alone]
            known = {*alone.keys() & words, *compress(others, np.any(vectors.of(others), axis=1))}
            if not known:
                raise UsageError(
                    f"vectors of {vectors.name or 'the array'} have none of the {len(words)} words of the documents"
                )
            names = with_words(names, known)
        vocabulary = cls(tokenizer, names)
        table = vocabulary.table
        counts = sequences.count(table) if distributed else table.count(sequences, small=True)
        if vectors is not None:
            counts = collected(counts)
            counts.resize(counts.shape[0], len(names) + 1)
        return vocabulary, counts, copies

    def without_pairs(self) -> NDArray[np.intp]:
        """Columns of single tokens, and of neighbors that count together whatever is asked for."""
        reach = getattr(self.tokenizer, "reach", None) or (lambda token: 1)
        grams = [name.split(" ") for name in self.names]
        return np.array([k for k, gram in enumerate(grams) if len(gram) <= min(map(reach, gram))], np.intp)

    def count(self, texts: Iterable[str]) -> sparse.csr_array:
        """Counts (n, |S|)."""
        return _warn_of_empty(self.table.count(self.tokenizer.tokens(texts)))

    def place(self, texts: Sequence[str]) -> tuple[sparse.csr_array, Places]:
        """Counts (n, |S|), and the places of everything that they count: one entry's after the other's, in their order."""
        sequences, places = self.tokenizer.place(texts)
        found = self.table.find(sequences)
        order = np.argsort(found.texts * len(self.names) + found.columns, kind="stable")
        starts, stops = places.starts[found.first[order]], places.stops[found.last[order]]
        return _warn_of_empty(found.count((len(texts), len(self.names)))), Places(starts, stops)


def with_words(names: Iterable[str], words: Iterable[str]) -> tuple[str, ...]:
    """Names and words in the order of a vocabulary: shorter n-grams first, then by the alphabet."""
    # words that are in order make one quick pass of the first sort, and few names are n-grams
    every = sorted(dict.fromkeys(chain(words, names)))
    longer = {name: name.count(" ") for name in names if " " in name}
    if longer:
        every = [*(name for name in every if name not in longer), *sorted(longer, key=lambda n: (longer[n], n))]
    return tuple(every)


def token_vectors(tokenizer: Tokenizer, vectors: WordVectors) -> tuple[dict[str, int], NDArray[np.float32]]:
    """Tokens that a word with a vector becomes alone, in the order of a vocabulary, with their rows, and their vectors.

    A vector is the mean over such words, as for a stem.
    """
    try:
        return _token_vectors(tokenizer, vectors)  # type: ignore[arg-type]
    except TypeError:  # word pieces in a list cannot be the key of a cache
        return _token_vectors.__wrapped__(tokenizer, vectors)


@lru_cache(maxsize=4)
def _token_vectors(tokenizer: Tokenizer, vectors: WordVectors) -> tuple[dict[str, int], NDArray[np.float32]]:
    found = tokenizer.tokens(vectors.words)
    words = np.flatnonzero(found.lengths == 1)
    alone = [found.names[token] for token in found.ids[found.starts[words]]]
    places = {token: row for row, token in enumerate(sorted(set(alone)))}
    rows = [places[token] for token in alone]
    shares = sparse.csr_array((np.ones(len(words), np.float32), (rows, words)), (len(places), len(vectors.words)))
    means = shares @ vectors.of(vectors.words) / shares.sum(axis=1)[:, None]
    return places, np.asarray(means, dtype=np.float32)


def vectors_of_tokens(tokenizer: Tokenizer, names: Sequence[str], vectors: WordVectors) -> NDArray[np.float32]:
    """Vectors of tokens, (|S|, dim); 0 for n-grams and where nothing is known."""
    places, means = token_vectors(tokenizer, vectors)
    rows = np.array([places.get(name, -1) for name in names], np.int64)
    found, others = means[rows], np.flatnonzero(rows < 0)
    found[others] = vectors.of([names[place] for place in others.tolist()])
    return np.asarray(found)


def _warn_of_empty(counts: sparse.csr_array) -> sparse.csr_array:
    empty = int((np.diff(counts.indptr) == 0).sum())
    if empty:
        several = f"{empty} of {counts.shape[0]} documents {'has' if empty == 1 else 'have'}"
        which = several if counts.shape[0] > 1 else "the document has"
        warnings.warn(f"{which} no known word; the prediction does not come from words", stacklevel=4)
    return counts


def _named(chunks: Iterable[list[list[str]]]) -> TokenSequences:
    # a space joins the tokens of an n-gram
    return TokenSequences.from_names([[token.replace(" ", "_") for token in row] for row in rows] for rows in chunks)


def _look_for(tokens: Sequence[str], text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower() if len(text.lower()) == len(text) else text
    end = 0
    for token in tokens:
        start = lowered.find(token.lower(), end)
        stop = start + len(token) if start >= 0 else end
        yield max(start, end), stop
        end = stop


def learn_counts(
    model: TextClassifier, X: Any, y: Any, vectors: WordVectors | None = None
) -> tuple[sparse.csr_array, NDArray[np.intp]]:
    """Counts of the training documents and groups of copies; fixes the vocabulary of the model."""
    from sklearn.utils.validation import validate_data

    texts = texts_of(X)
    if texts is None:
        if vectors is not None:
            raise UsageError(
                f"vectors are for words, and X of type {type(X).__name__} holds counts; give a list of texts"
            )
        if sparse.issparse(X):
            check_sparse("X", X)
        if hasattr(model, "_vocabulary"):
            del model._vocabulary, model.vocabulary_
        counts, _ = validate_data(model, X, y, accept_sparse="csr", dtype=np.float64, multi_output=True)
        counts = _non_negative(counts)
        _refuse_tfidf(model, counts)
        # rows with the same counts; others have the same sum with a chance of one in 2**50
        copies = np.unique(counts @ np.random.default_rng(0).random(counts.shape[1]), return_inverse=True)[1]
    else:
        if y is None:
            raise ValueError("y=None: requires y to be passed, one label per document")
        model._text_column = text_column(X)[0]
        ngrams = 2 if isinstance(model.ngram_range, str) else model.ngram_range[1]
        learned = Vocabulary.learn(tokenizer_of(model), texts, ngrams, model.min_df, vectors)
        model._vocabulary, counts, copies = learned
        model.vocabulary_ = model._vocabulary.names
    return counts, copies


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
        name = text_column(X)[0]
        if None not in (name, model._text_column) and name != model._text_column:
            raise ValueError(f"X has the column {name!r}; the model was fitted on {model._text_column!r}")
        return model._vocabulary.count(texts)
    if texts is not None:
        raise ValueError("X holds texts, but the model was fitted on a count matrix")
    from sklearn.utils.validation import validate_data

    if sparse.issparse(X):
        check_sparse("X", X)
    return _non_negative(validate_data(model, X, accept_sparse="csr", dtype=np.float64, reset=False))


def encode_classes(y: Any, documents: int, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers of the labels among the classes, (n,)."""
    from whichtoken.estimators.common import check_labels

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
            f" {pluralize(int((~kept).sum()), 'document')}: {shown}",
            stacklevel=4,
        )
    return np.asarray(kept)


def inverse_document_frequency(counts: sparse.csr_array) -> NDArray[np.float64]:
    """1 + log of (1 + documents) / (1 + documents that hold the token), (|S|,)."""
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + document_frequency(counts))) + 1)


def document_frequency(counts: sparse.csr_array) -> NDArray[np.int64]:
    """Documents that hold each token, (|S|,)."""
    return np.asarray(sum_blocks(counts, lambda block: np.bincount(block.indices, minlength=block.shape[1])))


def tokenizer_of(model: TextModel) -> Tokenizer:
    """What splits the texts of a model."""
    if callable(model.analyzer):
        return CallableTokenizer(model.analyzer)
    if model.analyzer is not None:
        return FileTokenizer.read(Path(model.analyzer))
    return TextPipeline(model.word_pieces, model.stop_words, stemmer=model.stemmer, least_count=1, words=2)


def text_column(X: Any) -> tuple[str | None, Any]:
    """Name and cells of the one column of texts of a table: of pandas, polars, Arrow or `datasets`, or an array (n, 1).

    Anything else comes back as it is, without a name.
    """
    if isinstance(X, list | tuple | str) or sparse.issparse(X):
        return None, X
    if is_partitioned(X):
        return (str(X.columns[0]) if getattr(X, "ndim", 1) == 2 and len(X.columns) == 1 else None), X
    if isinstance(X, np.ndarray):
        one = X.ndim == 1 or (X.ndim == 2 and X.shape[1] == 1)
        return None, X.ravel().tolist() if one and any(isinstance(cell, str) for cell in X.flat) else X
    import narwhals as nw

    table = table_of(X)
    if isinstance(table, nw.Series):
        return None, table.to_list()
    if not isinstance(table, nw.DataFrame):
        return None, X
    # by place: names may repeat
    texts = [place for place in range(len(table.columns)) if _holds_texts(table[:, place])]
    if not texts:
        return None, X
    chosen = table.columns[texts[0]]
    if len(table.columns) > 1:
        names = ", ".join(map(str, table.columns[:8]))
        raise ValueError(
            f"X has {len(table.columns)} columns ({names}); choose the one with the texts, such as X[[{chosen!r}]]"
        )
    return str(chosen), table[:, texts[0]].to_list()


def table_of(X: Any) -> Any:
    """A table or a column of pandas, polars, Arrow or `datasets` as narwhals sees it; anything else as it is."""
    import narwhals as nw

    if hasattr(X, "with_format") and hasattr(X, "column_names"):  # a Hugging Face dataset
        X = X.with_format("arrow")[:]
    elif type(X).__module__.startswith("pyarrow") and hasattr(X, "__arrow_c_array__"):  # not yet in chunks
        import pyarrow

        X = pyarrow.table(X) if hasattr(X, "columns") else pyarrow.chunked_array([X])
    table = nw.from_native(X, pass_through=True, allow_series=True)
    return table.collect() if isinstance(table, nw.LazyFrame) else table


def _holds_texts(column: Any) -> bool:
    import narwhals as nw

    if column.dtype == nw.Object:
        return any(isinstance(cell, str) for cell in column)
    return column.dtype in (nw.String, nw.Categorical, nw.Enum)


def texts_of(X: Any) -> Iterable[str] | None:
    """The documents if X holds texts, in a list, a column or a stream, None if it is something else."""
    if isinstance(X, str):
        raise ValueError(f"X={X[:30]!r} is one text; a list of texts is expected")
    X = text_column(X)[1]
    if is_partitioned(X):
        return X  # type: ignore[no-any-return]
    if sparse.issparse(X) or getattr(X, "ndim", 1) != 1 or not hasattr(X, "__iter__"):
        return None
    if hasattr(X, "__len__"):
        if len(X) == 0:
            raise ValueError("X is empty; there must be at least one document")
        return X if any(isinstance(item, str) for item in X) else None  # the first text may be missing
    source = iter(X)
    first = next(source, None)
    if not isinstance(first, str):
        raise ValueError(f"X of type {type(X).__name__} gives {repr(first)[:60]} first; a stream must hold texts")
    return chain([first], source)


def _refuse_tfidf(model: TextClassifier, counts: sparse.csr_array) -> None:
    """Refuse rows of length 1 that hold fractions, as TF-IDF has them, where counts would be weighted once more."""
    if not (model.sublinear_tf or model.use_idf) or counts.nnz < 2 or (counts.data == np.floor(counts.data)).all():
        return
    lengths = np.sqrt(np.asarray(counts.power(2).sum(axis=1)))
    if np.allclose(lengths[lengths > 0], 1.0, atol=1e-6):
        raise ValueError(
            "X holds rows of length 1, as TfidfVectorizer gives them; give counts (CountVectorizer), which are weighted here, or"
            " set sublinear_tf=False and use_idf=False to take the numbers as they are"
        )


def listed_texts(X: Any) -> list[str]:
    """The texts of X in a list, for what reads them more than once."""
    texts = texts_of(X)
    if texts is None:
        raise UsageError(
            f"an encoder is for texts, and X of type {type(X).__name__} holds counts; give a list of texts"
        )
    return list(chain.from_iterable(text_chunks(texts)))


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


# Dask collections as data: tokens are split where the texts are, and answers are given partition by partition. A bag, a series
# or a frame of one column holds texts. A worker that dies costs the time of its partitions.


@dataclass(frozen=True, eq=False)
class DaskTokens:
    """What a fit asks of the tokens of all texts, which stay with the workers: only vocabularies and tallies are merged."""

    parts: DaskRows  # of `TokenSequences`, numbered by the names of all
    names: list[str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, X: Any) -> DaskTokens:
        """Split the texts where they are; the names are merged some partitions at a time."""
        from dask.delayed import delayed

        split, names_of, number = delayed(_tokens_of_part), delayed(attrgetter("names")), delayed(_numbered)
        columns = (getattr(X, "name", None), *getattr(X, "columns", ()))
        parts = [split(tokenizer, part, place, __version__) for place, part in enumerate(X.to_delayed())]
        every = merged([names_of(part) for part in parts], _merged_names)
        parts = compute_for_fit(*(number(part, every) for part in parts), names=columns, verb="persist")
        names, *sizes = compute_for_fit(names_of(parts[0]), *map(delayed(len), parts), names=columns)
        return cls(DaskRows(parts, np.cumsum([0, *sizes]), 0), names)

    @property
    def occurrences(self) -> NDArray[np.int64]:
        """How often each name occurs, (names,)."""
        return np.asarray(self.parts.sum(attrgetter("occurrences")))

    def copies(self) -> NDArray[np.intp]:
        """Groups of the texts with nearly the same words, (n,)."""

        def of_all(wanted: slice) -> Any:
            return np.concatenate(compute_for_fit(*self.parts.apply(_band_hashes, wanted)), axis=1)

        def of_some(texts: NDArray[np.intp]) -> Any:
            return np.concatenate(compute_for_fit(*self.rows(texts).parts.apply(text_signatures)), axis=1)

        return groups_of(self.parts.shape[0], of_all, of_some)[1]

    def rows(self, chosen: NDArray[np.intp]) -> DaskTokens:
        """Some of the texts."""
        return replace(self, parts=self.parts.where(np.isin(np.arange(self.parts.shape[0]), chosen)))

    def frequent(self, ngrams: int, least: int, *, by_text: bool, reach: Any) -> tuple[str, ...]:
        """As of `TokenSequences`."""

        def tally(n: int, reaches: Any) -> Any:
            tallies = self.parts.apply(TokenSequences.tally, n, reaches, by_text)
            return compute_for_fit(merged(tallies, add_tallies))[0]

        return frequent_ngrams(self.names, tally, ngrams, least, reach)

    def count(self, table: NGramTable) -> DaskRows:
        """Counts (n, |S|), which stay there."""
        return self.parts.map(_count, table, columns=len(table.vocabulary)).keep()


def collected(counts: Any) -> sparse.csr_array:
    """Counts in this process."""
    return counts[:] if isinstance(counts, DaskRows) else counts


def columns_of(counts: Any, columns: NDArray[np.int64]) -> Any:
    """Some columns, where the counts are."""
    if isinstance(counts, DaskRows):
        return counts.map(columns_of, columns, columns=len(columns)).keep()
    return counts[:, columns]


def _check_version(asked: str) -> None:
    """Refuse to answer on a worker of another version."""
    if asked != __version__:
        raise UsageError(f"a worker has whichtoken {__version__}, this program {asked}; install the same on both")


def _tokens_of_part(tokenizer: Tokenizer, part: Any, place: int, version: str) -> TokenSequences:
    _check_version(version)
    if not len(part):
        return TokenSequences.from_names([])
    try:
        texts = texts_of(part)
        if texts is None:
            raise ValueError(f"it holds {type(part).__name__} without texts")
        return tokenizer.tokens(texts)
    except ValueError as error:
        raise ValueError(f"partition {place}: {error}") from error


def _merged_names(parts: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _numbered(part: TokenSequences, every: list[str]) -> TokenSequences:
    """Tokens of a partition by their places among all names."""
    places = dict(zip(every, range(len(every)), strict=True))
    own = np.fromiter(map(places.__getitem__, part.names), np.int32, len(part.names))
    return TokenSequences(own[part.ids], part.lengths, every)


def _band_hashes(part: TokenSequences, wanted: slice) -> NDArray[np.uint64]:
    return band_hashes(text_signatures(part, wanted))


def _count(part: TokenSequences, table: NGramTable) -> sparse.csr_array:
    return table.count(part)


def by_partition(method: Method) -> Method:
    """Let a method of texts, which gives one answer for each, take a Dask collection and give a lazy one.

    Labels and scores of a series or a frame are a series or a frame with its index; everything else is a bag.
    """

    @wraps(method)
    def run(model: Any, X: Any, *others: Any, **options: Any) -> Any:
        if not is_partitioned(X):
            return method(model, X, *others, **options)
        answer = partial(_answer_part, __version__, method, model, others, options)
        if method.__name__ == "explain" or not hasattr(X, "dtypes"):
            import dask.bag

            items = X if isinstance(X, dask.bag.Bag) else dask.bag.from_delayed(X.to_delayed())  # type: ignore[no-untyped-call]
            places = dask.bag.from_sequence(range(items.npartitions), npartitions=items.npartitions)  # type: ignore[no-untyped-call]
            return items.map_partitions(answer, False, places)
        return X.map_partitions(answer, True, meta=answer(X._meta, True))

    return cast(Method, run)


def _blank(model: Any) -> Any:
    model = getattr(model, "scorer_", model)
    if model._columns is None:
        return ["-"]
    from whichtoken.estimators.text.columns import TextTable

    return TextTable.blank(model._columns.encoding)


def _answer_part(
    version: str, method: Callable[..., Any], model: Any, others: Any, options: Any, part: Any, framed: bool,
    places: Sequence[int] = (),
) -> Any:  # fmt: skip
    """The answers for one partition, of a bag with its place: a list, or with the index of the partition."""
    _check_version(version)
    texts = part if hasattr(part, "columns") else list(part)
    size = len(texts)
    if not size and not framed:
        return []
    with warnings.catch_warnings():
        if not size:  # the form of the answer is that for some text
            warnings.simplefilter("ignore")
            texts = _blank(model)
        try:
            found = method(model, texts, *others, **options)
        except ValueError as error:
            where = "".join(f" {place}" for place in places)
            if hasattr(part, "iloc"):
                where = f" that begins with index {part.index[0]!r}" if size else ""
            raise ValueError(f"partition{where}: {error}") from error
    if not framed:
        return list(found)
    import pandas as pd

    values = np.asarray(found)[:size]
    if values.ndim == 2:
        return pd.DataFrame(values, index=part.index, columns=list(model.classes_))
    return pd.Series(values, index=part.index, name=method.__name__)
