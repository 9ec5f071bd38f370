"""Tokens of many texts in order, as one flat array: expanded, truncated, paired and counted without a loop over texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.data.token_counts import count_ids

Ints = NDArray[np.int64]

CHUNK = 1 << 21  # tokens worked on together: bounds the temporary arrays to some 100 MB


@dataclass(frozen=True)
class TokenSequences:
    """Numbers of tokens, text after text."""

    ids: NDArray[np.int32]  # (all tokens,)
    lengths: Ints  # (n,)
    names: list[str]  # by number

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
            lengths.append(np.diff(ends[np.concatenate([[0], np.cumsum(part.lengths)])]))
        return TokenSequences(_join(ids, np.int32), _join(lengths, np.int64), names)

    def truncate(self, length: int) -> TokenSequences:
        """The first tokens of each text."""
        starts = np.cumsum(self.lengths) - self.lengths
        position = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return TokenSequences(self.ids[position < length], np.minimum(self.lengths, length), self.names)

    def rows(self, chosen: ArrayLike) -> TokenSequences:
        """Some of the texts, by index or mask, in their order here."""
        mask = np.zeros(len(self.lengths), dtype=bool)
        mask[np.asarray(chosen)] = True
        return TokenSequences(self.ids[np.repeat(mask, self.lengths)], self.lengths[mask], self.names)

    def parts(self) -> Iterator[TokenSequences]:
        """Groups of neighbouring texts with about `CHUNK` tokens together."""
        ends = np.cumsum(self.lengths)
        cuts = np.flatnonzero(np.diff(ends // CHUNK)) + 1
        for rows in np.split(np.arange(len(ends)), cuts):
            if rows.size:
                first, last = ends[rows[0]] - self.lengths[rows[0]], ends[rows[-1]]
                yield TokenSequences(self.ids[first:last], self.lengths[rows], self.names)

    def keys(self, n: int, base: int) -> tuple[Ints, Ints]:
        """One number per n-gram inside a text, its ids as digits to `base`, and the text that it stands in."""
        ids = self.ids.astype(np.int64)
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        keys = ids[: len(ids) - n + 1]
        for shift in range(1, n):
            keys = keys * base + ids[shift : len(ids) - n + 1 + shift]
        inside = rows[: len(keys)] == rows[n - 1 :]
        return keys[inside], rows[: len(keys)][inside]

    def frequent(self, ngrams: int, least_count: int) -> tuple[str, ...]:
        """The n-grams, n = 1..ngrams, that occur at least `least_count` times: shorter ones first, then by the alphabet."""
        vocabulary: list[str] = []
        for n in range(1, ngrams + 1):
            if n == 1:  # no sort, no copy
                values, totals = np.arange(len(self.names)), np.bincount(self.ids, minlength=len(self.names))
            else:
                keys = _join([part.keys(n, len(self.names))[0] for part in self.parts()], np.int64)
                values, totals = np.unique(keys, return_counts=True)
            vocabulary += sorted(self._spell(values[totals >= least_count], n))
        return tuple(vocabulary)

    def _spell(self, keys: Ints, n: int) -> list[str]:
        digits = []
        for _ in range(n):
            keys, digit = np.divmod(keys, len(self.names))
            digits.append([self.names[i] for i in digit])
        return [" ".join(names) for names in zip(*reversed(digits), strict=True)]


@dataclass(frozen=True)
class NGramTable:
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
        for column, gram in enumerate(self.vocabulary):
            key = 0
            parts = gram.split(" ")
            for token in parts:
                key = key * self.base + self.tokens[token]
            grams.setdefault(len(parts), []).append((key, column))
        return {n: np.array(sorted(pairs), dtype=np.int64).T for n, pairs in grams.items()}

    def count(self, sequences: TokenSequences) -> sparse.csr_array:
        """How often each n-gram occurs in each text, (n, |S|)."""
        strange = self.base - 1
        number = np.array([self.tokens.get(name, strange) for name in sequences.names], dtype=np.int32)
        blocks = [self._count_part(TokenSequences(number[part.ids], part.lengths, [])) for part in sequences.parts()]
        if not blocks:
            return sparse.csr_array((0, len(self.vocabulary)), dtype=np.int32)
        return blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr")

    def _count_part(self, part: TokenSequences) -> sparse.csr_array:
        found_rows, found_columns = [], []
        for n, (known, columns) in self._tables.items():
            keys, rows = part.keys(n, self.base)
            place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            found = known[place] == keys
            found_rows.append(rows[found])
            found_columns.append(columns[place[found]])
        shape = (len(part.lengths), len(self.vocabulary))
        return count_ids(_join(found_rows, np.int64), _join(found_columns, np.int64), shape)


def _join(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
