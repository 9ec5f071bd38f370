"""Documents to counts and back to characters, with the built-in words, any callable, or a Hugging Face `tokenizers` file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy import sparse

from whichtoken.data.reading import read_text, readable
from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.data.token_sequences import NGramTable, TokenSequences
from whichtoken.data.tokenizer_process import Encoded, encode_texts
from whichtoken.data.word_split import Places, text_chunks
from whichtoken.errors import UsageError


class Tokenizer(Protocol):
    """What splits texts."""

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
        return _named([rows]), _columns(spans)


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
            list(encode_texts(json, []))
        except UsageError as error:  # the caller knows which file it is
            raise ValueError(str(error)) from error
        return cls(json)

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        return self._sequences(encode_texts(self.json, text_chunks(texts)))

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The tokens with their places."""
        found = list(encode_texts(self.json, [texts], places=True))
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
class WordTokenizer:
    """The built-in words: lower case, stop words, stems, word pieces."""

    pipeline: TextPipeline

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        return self.pipeline.tokens(texts)

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The tokens with the places of the words that they came from."""
        return self.pipeline.place(texts)


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of n-grams: counts them in texts and finds them there."""

    tokenizer: Tokenizer
    names: tuple[str, ...]  # the tokens of an n-gram are joined by a space
    ngrams: int
    table: NGramTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", NGramTable(self.names))

    @classmethod
    def learn(
        cls, tokenizer: Tokenizer, texts: Iterable[str], ngrams: int, least_count: int
    ) -> tuple[Vocabulary, sparse.csr_array]:
        """Keep what occurs often enough; also the counts of the same texts."""
        sequences = tokenizer.tokens(texts)
        names = sequences.frequent(ngrams, least_count)
        if not names:
            raise ValueError(
                f"least_count={least_count} leaves no token of {len(sequences.lengths)} documents; lower it, or look at them"
            )
        vocabulary = cls(tokenizer, names, ngrams)
        return vocabulary, vocabulary.table.count(sequences)

    def count(self, texts: Iterable[str]) -> sparse.csr_array:
        """Counts (n, |S|)."""
        return _warned(self.table.count(self.tokenizer.tokens(texts)))

    def place(self, texts: Sequence[str]) -> tuple[sparse.csr_array, Places]:
        """Counts (n, |S|), and the places of everything that they count: one entry's after the other's, in their order."""
        sequences, places = self.tokenizer.place(texts)
        found = self.table.find(sequences)
        order = np.argsort(found.texts * len(self.names) + found.columns, kind="stable")
        starts, stops = places.starts[found.first[order]], places.stops[found.last[order]]
        return _warned(found.count((len(texts), len(self.names)))), Places(starts, stops)


def _warned(counts: sparse.csr_array) -> sparse.csr_array:
    empty = int((np.diff(counts.indptr) == 0).sum())
    if empty:
        has, gets = ("has", "it gets") if empty == 1 else ("have", "they get")
        warnings.warn(
            f"{empty} of {counts.shape[0]} documents {has} no known word; {gets} the most likely label", stacklevel=4
        )
    return counts


def _named(chunks: Iterable[list[list[str]]]) -> TokenSequences:
    """Tokens that are given by their names, some texts at a time."""
    numbers: dict[str, int] = {}
    ids = [np.empty(0, np.int32)]
    lengths: list[int] = []
    for rows in chunks:
        lengths += map(len, rows)
        names = (token.replace(" ", "_") for token in chain.from_iterable(rows))  # a space joins n-grams
        ids.append(np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32))
    return TokenSequences(np.concatenate(ids), np.array(lengths, np.int64), list(numbers))


def _look_for(tokens: Sequence[str], text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower() if len(text.lower()) == len(text) else text
    end = 0
    for token in tokens:
        start = lowered.find(token.lower(), end)
        stop = start + len(token) if start >= 0 else end
        yield max(start, end), stop
        end = stop


def _columns(spans: list[tuple[int, int]]) -> Places:
    return Places(*np.array(spans, np.int64).reshape(-1, 2).T)
