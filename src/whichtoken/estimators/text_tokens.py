"""Documents to counts and back to characters, with the built-in words, any callable, or a Hugging Face `tokenizers` file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.data.token_sequences import NGramTable, TokenSequences
from whichtoken.errors import UsageError

Placed = tuple[str, int, int]  # a token and the characters text[start:stop] that it came from


class Tokenizer(Protocol):
    """What splits texts."""

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""

    def place(self, text: str) -> list[Placed]:
        """The tokens of one text with their places."""


@dataclass(frozen=True)
class CallableTokenizer:
    """Any function from a text to a list of strings; a token is looked for in the text, from left to right."""

    split: Callable[[str], Sequence[str]]

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        numbers: dict[str, int] = {}
        ids, lengths = [], []
        for text in texts:
            row = [str(token).replace(" ", "_") for token in self.split(text)]  # a space joins n-grams
            ids += [numbers.setdefault(token, len(numbers)) for token in row]
            lengths.append(len(row))
        return TokenSequences(np.array(ids, np.int32), np.array(lengths, np.int64), list(numbers))

    def place(self, text: str) -> list[Placed]:
        """The tokens of one text; one that does not stand there literally gets the place where the last one ended."""
        places, end = [], 0
        lowered = text.lower() if len(text.lower()) == len(text) else text
        for token in map(str, self.split(text)):
            start = lowered.find(token.lower(), end)
            stop = start + len(token) if start >= 0 else end
            places.append((token.replace(" ", "_"), max(start, end), stop))
            end = stop
        return places


@dataclass(frozen=True)
class FileTokenizer:
    """A `tokenizer.json` of the Hugging Face `tokenizers` library."""

    json: str  # what the file holds

    @classmethod
    def read(cls, path: Path) -> FileTokenizer:
        """From a file."""
        try:
            tokenizer = cls(path.read_text(encoding="utf-8"))
            _ = tokenizer._tokenizer
        except Exception as error:  # the library raises bare exceptions
            reason = " ".join(str(error).split())
            raise UsageError(f"analyzer={str(path)!r} cannot be read as a tokenizers file: {reason}") from error
        return tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer as Loaded

        return Loaded.from_str(self.json)

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        codes = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = np.concatenate([np.empty(0, np.int32), *(np.array(code.ids, np.int32) for code in codes)])
        names = [self._tokenizer.id_to_token(i) or "" for i in range(int(ids.max(initial=-1)) + 1)]
        return TokenSequences(ids, np.array([len(code.ids) for code in codes], np.int64), names)

    def place(self, text: str) -> list[Placed]:
        """The tokens of one text with their places."""
        code = self._tokenizer.encode(text, add_special_tokens=False)
        return [(token, *span) for token, span in zip(code.tokens, code.offsets, strict=True)]


@dataclass(frozen=True)
class WordTokenizer:
    """The built-in words: lower case, stop words, stems, word pieces."""

    pipeline: TextPipeline

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order."""
        return self.pipeline.tokens(texts)

    def place(self, text: str) -> list[Placed]:
        """The tokens of one text with the places of the words that they came from."""
        return self.pipeline.place(text)


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
        counts = self.table.count(self.tokenizer.tokens(texts))
        empty = int((np.diff(counts.indptr) == 0).sum())
        if empty:
            warnings.warn(
                f"{empty} of {counts.shape[0]} documents hold no known token and get the default decision", stacklevel=3
            )
        return counts

    def place(self, text: str) -> dict[int, list[tuple[int, int]]]:
        """Start and stop of every occurrence of a known n-gram, by column."""
        placed, columns = self.tokenizer.place(text), self._columns
        found: dict[int, list[tuple[int, int]]] = {}
        for token, start, stop in placed:
            if token in columns:
                found.setdefault(columns[token], []).append((start, stop))
        for n in range(2, self.ngrams + 1):
            for first in range(len(placed) - n + 1):
                gram = placed[first : first + n]
                column = columns.get(" ".join(token for token, _, _ in gram))
                if column is not None:
                    found.setdefault(column, []).append((gram[0][1], gram[-1][2]))
        return found

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}
