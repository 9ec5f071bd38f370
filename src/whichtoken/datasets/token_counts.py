"""Documents as token counts, and the flat array of tokens that n-grams are counted in without a loop over texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.attention.ragged import RaggedArray, starts_of
from whichtoken.checks import as_csr
from whichtoken.display.shown import Shown

LARGEST = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class TokenCounts(Shown):
    """How often each token occurs in each document, and the label of each document.

    Reach for it where documents are bags of tokens: counts, labels and names are checked once, for all that take them.

    Parameters
    ----------
    counts : array of shape (n, |S|)
        Anything that `scipy.sparse.csr_array` accepts; kept as int32 with sorted indices and without stored zeros.
    labels : array of shape (n,)
        -1 or +1.
    vocabulary : sequence of str, optional
        Name of each token, (|S|,).

    Examples
    --------
    >>> from whichtoken.datasets import TokenCounts
    >>> documents = TokenCounts([[1, 0, 2], [0, 1, 0]], labels=[1, -1])
    >>> documents.lengths.tolist()
    [3, 1]
    """

    counts: sparse.csr_array
    labels: NDArray[np.int8]
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        counts = as_counts(self.counts)
        labels = as_signs(self.labels)
        if labels.shape != (counts.shape[0],):
            raise ValueError(f"labels of shape {labels.shape} must be one per document, ({counts.shape[0]},)")
        if self.vocabulary is not None and len(self.vocabulary) != counts.shape[1]:
            raise ValueError(f"vocabulary of {len(self.vocabulary)} words must name all {counts.shape[1]} tokens")
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "vocabulary", None if self.vocabulary is None else tuple(self.vocabulary))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, repetitions included, (n,)."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def subset(self, rows: ArrayLike) -> Self:
        """The documents of an index array, a mask or a slice."""
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        return type(self)(self.counts[chosen], self.labels[chosen], self.vocabulary)

    def __len__(self) -> int:
        return int(self.counts.shape[0])


def count_ids(rows: NDArray[Any], ids: NDArray[Any], shape: tuple[int, int]) -> sparse.csr_array:
    """How often each (row, id) occurs."""
    ones = np.ones(len(ids), dtype=np.int32)
    counts = sparse.coo_array((ones, (rows.astype(np.int32), ids.astype(np.int32))), shape=shape).tocsr()
    counts.sum_duplicates()
    return counts


def as_counts(counts: Any) -> sparse.csr_array:
    """Whole numbers >= 0, (n, |S|), as int32 csr_array with sorted indices; a view where that is already so."""
    matrix = as_csr("counts", counts if sparse.issparse(counts) else np.asarray(counts))
    if matrix.ndim != 2:
        raise ValueError(f"counts of shape {matrix.shape} must have two axes, documents and tokens")
    values = matrix.data
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or (values != np.floor(values)).any():
        raise ValueError(f"counts of type {values.dtype} must be whole numbers")
    if values.min(initial=0) < 0:
        raise ValueError(f"counts hold {values.min()}, a token cannot occur less than 0 times")
    if values.max(initial=0) > LARGEST:
        raise ValueError(f"counts hold {values.max()}, the largest that is accepted is {LARGEST}")
    matrix = matrix.astype(np.int32, copy=False)
    if not matrix.has_canonical_format or (values == 0).any():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix


def as_signs(labels: Any) -> NDArray[np.int8]:
    """Labels as int8, (n,); only -1 and +1 are accepted."""
    values = np.asarray(labels)
    strange = [value for value in np.unique(values).tolist() if value not in (-1, 1)]
    if strange:
        raise ValueError(f"labels hold {', '.join(map(repr, strange[:4]))}; only -1 and +1 are accepted")
    return values.astype(np.int8)


Ints = NDArray[np.int64]

LARGEST_KEY = np.iinfo(np.int64).max  # of an n-gram
CHUNK = 1 << 21  # tokens worked on together: bounds the temporary arrays to some 100 MB


class TokenSequences(RaggedArray):
    """Numbers of tokens, text after text, and the names of the numbers."""

    names: list[str]

    def __init__(self, ids: NDArray[np.int32], lengths: Ints, names: list[str]) -> None:
        self.__dict__.update(vars(RaggedArray.unchecked(starts_of(lengths), tokens=ids)), names=names)

    def __sizeof__(self) -> int:
        """Bytes, by which Dask's workers know how full they are and what they have sent."""
        return int(self.ids.nbytes + self.starts.nbytes + sum(map(len, self.names)))

    @property
    def ids(self) -> NDArray[np.int32]:
        """Number of each token, (all tokens,)."""
        return self.tokens  # type: ignore[return-value]

    @classmethod
    def from_names(cls, chunks: Iterable[Sequence[Sequence[str]]]) -> TokenSequences:
        """Texts that are given by the names of their tokens, some at a time; numbered in the order of appearance."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for texts in chunks:
            lengths.append(np.fromiter(map(len, texts), np.int64, len(texts)))
            flat = map(numbers.__getitem__, chain.from_iterable(texts))
            ids.append(np.fromiter(flat, np.int32, int(lengths[-1].sum())))
        return cls(np.concatenate(ids), np.concatenate(lengths), list(numbers))

    def expand(self, flat: NDArray[np.int32], sizes: Ints, names: list[str]) -> TokenSequences:
        """Replace each token i by the `sizes[i]` tokens that stand for it in `flat`, one token's after the other's."""
        starts = np.cumsum(sizes) - sizes
        ids, lengths = [], []
        for part in self.parts():
            count = sizes[part.ids]  # tokens that each token becomes
            ends = np.concatenate([[0], np.cumsum(count)])
            source = np.repeat(starts[part.ids] - ends[:-1], count)
            source += np.arange(ends[-1])
            ids.append(flat[source])
            lengths.append(np.diff(ends[part.starts]))
        return TokenSequences(_join(ids, np.int32), _join(lengths, np.int64), names)

    @property
    def occurrences(self) -> Ints:
        """How often each name occurs, (names,)."""
        return np.bincount(self.ids, minlength=len(self.names))

    @property
    def texts(self) -> Ints:
        """The text that each token stands in."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def rows(self, chosen: ArrayLike) -> TokenSequences:
        """Some of the texts, by index or mask, in their order here."""
        mask = np.zeros(len(self), dtype=bool)
        mask[np.asarray(chosen)] = True
        return self[mask]  # type: ignore[no-any-return]

    def parts(self, size: int = CHUNK) -> Iterator[TokenSequences]:
        """Groups of neighboring texts with about `size` tokens together."""
        ends = np.cumsum(self.lengths)
        cuts = np.flatnonzero(np.diff(ends // size)) + 1
        for rows in np.split(np.arange(len(ends)), cuts):
            if rows.size:
                first, last = ends[rows[0]] - self.lengths[rows[0]], ends[rows[-1]]
                yield TokenSequences(self.ids[first:last], self.lengths[rows], self.names)

    def keys(self, n: int, base: int) -> tuple[Ints, Ints]:
        """One number per n-gram inside a text, its ids as digits to `base`, and where its first token stands in `ids`."""
        if base**n > LARGEST_KEY:
            raise ValueError(
                f"n-grams of {n} tokens are too many for texts with {base} distinct tokens; use at most {n - 1}"
            )
        ids, texts = self.ids.astype(np.int64), self.texts
        keys = ids[: len(ids) - n + 1]
        for shift in range(1, n):
            keys = keys * base + ids[shift : len(ids) - n + 1 + shift]
        inside = np.flatnonzero(texts[: len(keys)] == texts[n - 1 :])
        return keys[inside], inside

    def frequent(
        self, ngrams: int, least: int, *, by_text: bool = False, reach: Callable[[str], int] | None = None
    ) -> tuple[str, ...]:
        """The n-grams, n = 1..ngrams, that occur at least `least` times, or in so many texts if these are to be counted.

        Longer ones are those of tokens whose `reach` is all that long. Shorter ones come first, then the alphabet decides.
        """
        return frequent_ngrams(self.names, partial(self.tally, by_text=by_text), ngrams, least, reach)

    def tally(self, n: int, reaches: Ints | None, by_text: bool) -> tuple[Ints, Ints]:
        """Keys of the n-grams, ascending, and how often each occurs, or in how many texts; of tokens that reach so far."""
        singles = np.arange(len(self.names))
        found = [(singles, np.zeros(len(singles), np.int64))] if n == 1 else []
        for part in self.parts():
            keys, first = part.keys(n, len(self.names))
            if reaches is not None:
                far = np.logical_and.reduce([reaches[part.ids[first + shift]] >= n for shift in range(n)])
                keys, first = keys[far], first[far]
            # the key of a single token is its number: nothing to sort
            values, codes = (singles, keys) if n == 1 else np.unique(keys, return_inverse=True)
            if by_text:
                codes = count_ids(part.texts[first], codes, (len(part), len(values))).indices
            found.append((values, np.bincount(codes, minlength=len(values))))
            if n == 1:
                found = [add_tallies(found)]
        return add_tallies(found)


def add_tallies(tallies: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Several tallies as one."""
    keys = [keys for keys, _ in tallies]
    if keys and all(len(some) == len(keys[0]) and (some == keys[0]).all() for some in keys):  # single tokens
        return keys[0], np.sum([totals for _, totals in tallies], axis=0)
    every, places = np.unique(_join(keys, np.int64), return_inverse=True)
    return every, np.bincount(places, _join([totals for _, totals in tallies], np.int64), len(every)).astype(np.int64)


def frequent_ngrams(
    names: Sequence[str], tally: Callable[..., tuple[Ints, Ints]], ngrams: int, least: int, reach: Any
) -> tuple[str, ...]:
    """The n-grams whose totals are large enough, n = 1..ngrams or as far as tokens reach."""
    reaches = np.array([ngrams if reach is None else max(ngrams, reach(name)) for name in names], np.int64)
    vocabulary: list[str] = []
    for n in range(1, int(reaches.max(initial=ngrams)) + 1):
        keys, totals = tally(n, reaches if n > ngrams else None)
        vocabulary += sorted(_spell(keys[totals >= least], n, names))
    return tuple(vocabulary)


def _spell(keys: Ints, n: int, names: Sequence[str]) -> list[str]:
    digits = []
    for _ in range(n):
        keys, digit = np.divmod(keys, len(names))
        digits.append([names[i] for i in digit])
    return [" ".join(grams) for grams in zip(*reversed(digits), strict=True)]


@dataclass(frozen=True)
class Occurrences(Shown):
    """N-grams in texts, one entry each time that one occurs."""

    texts: Ints
    columns: Ints
    first: Ints  # token of all texts that it begins with
    last: Ints

    def count(self, shape: tuple[int, int]) -> sparse.csr_array:
        """How often each occurs in each text, (n, |S|)."""
        return count_ids(self.texts, self.columns, shape)


@dataclass(frozen=True)
class NGramTable(Shown):
    """Columns of the n-grams of a vocabulary, ready for counting."""

    vocabulary: Sequence[str]  # tokens of an n-gram are joined by a space

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Numbers of the single tokens that n-grams are made of."""
        tokens: dict[str, int] = {}
        for gram in self.vocabulary:
            for token in gram.split(" "):
                tokens.setdefault(token, len(tokens))
        return tokens

    @property
    def base(self) -> int:
        """For the keys of n-grams: one digit more than tokens, the last one for tokens that are not in the vocabulary."""
        return len(self.tokens) + 1

    @cached_property
    def _tables(self) -> dict[int, NDArray[np.int64]]:
        """For each n the keys, ascending, and their columns: (2, n-grams)."""
        grams: dict[int, list[tuple[int, int]]] = {}
        tokens, base = self.tokens, self.base
        for column, gram in enumerate(self.vocabulary):
            key = 0
            parts = gram.split(" ")
            for token in parts:
                key = key * base + tokens[token]
            grams.setdefault(len(parts), []).append((key, column))
        return {n: np.array(sorted(pairs), dtype=np.int64).T for n, pairs in grams.items()}

    def count(self, sequences: TokenSequences, *, small: bool = False) -> sparse.csr_array:
        """How often each n-gram occurs in each text, (n, |S|), as int32, or if `small` as the smallest integers that do."""
        numbers = self._numbers(sequences.names)
        columns, counts, sizes = [], [], [np.zeros(1, np.int64)]
        for part in sequences.parts():
            block = self._find(part, numbers).count((len(part.lengths), len(self.vocabulary)))
            columns.append(block.indices)
            counts.append(block.data.astype(np.min_scalar_type(block.data.max(initial=0))) if small else block.data)
            sizes.append(np.diff(block.indptr))
        starts = np.cumsum(np.concatenate(sizes))
        # with starts of 64 bits, scipy would take 64 for the columns too
        starts = starts.astype(np.int32) if starts[-1] <= LARGEST else starts
        arrays = _join_and_clear(counts, np.int32), _join_and_clear(columns, np.int32), starts
        return sparse.csr_array(arrays, shape=(len(sequences.lengths), len(self.vocabulary)))

    def find(self, sequences: TokenSequences) -> Occurrences:
        """Every n-gram of the vocabulary in the texts."""
        return self._find(sequences, self._numbers(sequences.names))

    def _find(self, sequences: TokenSequences, numbers: NDArray[np.int32]) -> Occurrences:
        known = TokenSequences(numbers[sequences.ids], sequences.lengths, [])
        columns, first, last = [], [], []
        for n in self._tables:
            keys, place = known.keys(n, self.base)
            column = self._columns(n, keys)
            found = np.flatnonzero(column >= 0)
            columns.append(column[found])
            first.append(place[found])
            last.append(first[-1] + n - 1)
        starts = _join(first, np.int64)
        return Occurrences(sequences.texts[starts], _join(columns, np.int64), starts, _join(last, np.int64))

    def _numbers(self, names: Sequence[str]) -> NDArray[np.int32]:
        """What `tokens` has for each name, the last digit for a name that it does not have."""
        strange = self.base - 1
        return np.array([self.tokens.get(name, strange) for name in names], dtype=np.int32)

    def _columns(self, n: int, keys: Ints) -> Ints:
        """Columns of keys, -1 for those of n-grams that are not in the vocabulary."""
        known, columns = self._tables[n]
        if n == 1:  # a key is the number of a token: no search
            table = np.full(self.base, -1)
            table[known] = columns
            return table[keys]
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[place] == keys, columns[place], -1)


def _join(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _join_and_clear(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """The parts as one array; the list is empty afterwards, so that they do not stay in memory beside it."""
    joined = _join(parts, dtype)
    parts.clear()
    return joined


def stored_rows(counts: sparse.csr_array) -> NDArray[np.int64]:
    """Row of each stored entry, (nnz,)."""
    return np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))


def row_maxima(entries: NDArray[np.float64], indptr: NDArray[Any]) -> NDArray[np.float64]:
    """Largest entry of each row, -inf for empty ones, (n,)."""
    filled = np.diff(indptr) > 0
    maxima = np.full(len(filled), -np.inf)
    if filled.any():
        maxima[filled] = np.maximum.reduceat(entries, indptr[:-1][filled])
    return maxima
