"""Texts that repeat others, word for word or nearly: found by hashed shingles, in time that grows with the number of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from whichtoken.datasets.token_counts import TokenSequences

BANDS, ROWS = 16, 3  # at 60 % of shared shingles 98 of 100 pairs meet in a band, of unrelated texts hardly any
ALIKE = 0.6  # share of the shingles of both texts that they have in common
LARGEST_SHARE = 0.1  # of all texts in one group of near duplicates; more than that is a template, not a copy
CACHED = 1 << 17  # shingles
TOGETHER, PAIRS = 4, 1 << 18  # bands, and pairs of texts, whose signatures are in memory at a time

Hashes = NDArray[np.uint32]
Rows = NDArray[np.intp]


def text_signatures(sequences: TokenSequences, wanted: slice = slice(None)) -> Hashes:
    """Minima of hashes of the neighboring pairs of words of each text, (48, n): the more alike texts are, the more are equal.

    Or only the rows that are wanted.
    """
    words = np.array([crc32(name.encode(errors="surrogatepass")) for name in sequences.names] or [0], np.uint32)
    factors = np.random.default_rng(0).integers(1 << 31, 1 << 32, BANDS * ROWS, dtype=np.uint32) | np.uint32(1)
    factors = factors[wanted]
    found = np.empty((len(factors), len(sequences)), np.uint32)
    first = 0
    # some texts at a time, whose shingles stay in the cache of the processor
    for part in sequences.parts(CACHED):
        codes = words[part.ids]
        # a text of n words has n + 1 shingles, as its beginning and its end count as words; so even an empty one has one
        places, rows = np.arange(len(part) + 1) + part.starts, part.texts
        left, right = np.full(places[-1], 17, np.uint32), np.full(places[-1], 29, np.uint32)
        left[np.arange(len(codes)) + rows + 1], right[np.arange(len(codes)) + rows] = codes, codes
        shingles = _mix_bits(_mix_bits(left) + right)
        for row, factor in zip(found, factors, strict=True):
            row[first : first + len(part)] = np.minimum.reduceat(_mix_bits(shingles * factor), places[:-1])
        first += len(part)
    return found


def _mix_bits(codes: Hashes) -> Hashes:
    mixed = (codes ^ (codes >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return np.asarray(mixed ^ (mixed >> np.uint32(15)))


def _hash_columns(signatures: NDArray[Any], joined: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """One number of 64 bits for each column: two of ten million that differ get the same one once in 400 000 times.

    `joined` has those of the rows before.
    """
    joined = np.zeros(signatures.shape[1], np.uint64) if joined is None else joined
    for row in signatures:
        joined = (joined ^ row) * np.uint64(0x9E3779B97F4A7C15)
        joined ^= joined >> np.uint64(29)
    return joined


def band_hashes(signatures: Hashes) -> NDArray[np.uint64]:
    """One number for each band and each text, (bands, n)."""
    return np.stack([_hash_columns(signatures[band : band + ROWS]) for band in range(0, len(signatures), ROWS)])


def duplicate_groups(*signatures: Hashes) -> tuple[Rows, Rows]:
    """Number of the group of each text, (n,): of those with the same words, and of those with nearly the same.

    The signatures may come in parts, some texts after the other.
    """

    def hashes(wanted: slice) -> NDArray[np.uint64]:
        return np.concatenate([band_hashes(part[wanted]) for part in signatures], axis=1)

    def of_texts(texts: Rows) -> Hashes:
        return np.stack([np.concatenate(row)[texts] for row in zip(*signatures, strict=True)])

    return groups_of(sum(part.shape[1] for part in signatures), hashes, of_texts)


def duplicate_texts(sequences: TokenSequences) -> tuple[Rows, Rows]:
    """The same for texts that are in memory, which takes a quarter of it: signatures are made again when they are needed."""
    return groups_of(
        len(sequences),
        lambda wanted: band_hashes(text_signatures(sequences, wanted)),
        lambda texts: text_signatures(sequences.rows(texts)),
    )


def groups_of(
    size: int, hashes_of: Callable[[slice], NDArray[np.uint64]], of_texts: Callable[[Rows], Hashes]
) -> tuple[Rows, Rows]:
    """From the hashes of some bands of all texts, and from the signatures of some texts, given in ascending order."""
    whole, edges = np.zeros(size, np.uint64), []
    for first in range(0, BANDS * ROWS, TOGETHER * ROWS):
        hashes = hashes_of(slice(first, first + TOGETHER * ROWS))
        whole = _hash_columns(hashes, whole)
        for band in hashes:
            _, first_of, codes = np.unique(band, return_index=True, return_inverse=True)
            others = np.flatnonzero(first_of[codes] != np.arange(size))
            edges.append(np.stack([others, first_of[codes[others]]]))
        del hashes
    same = np.unique(whole, return_inverse=True)[1]
    one, two = np.unique(np.concatenate(edges, axis=1), axis=1)
    shared = np.zeros(len(one), np.intp)
    for start in range(0, len(one), PAIRS):
        pairs = slice(start, start + PAIRS)
        texts, places = np.unique(np.stack([one[pairs], two[pairs]]), return_inverse=True)
        found = of_texts(texts)
        left, right = places.reshape(2, -1)
        shared[pairs] = sum((row[left] == row[right]).astype(np.intp) for row in found)
    alike = shared >= ALIKE * BANDS * ROWS
    graph = sparse.coo_array((np.ones(alike.sum(), bool), (one[alike], two[alike])), shape=(size, size))
    near = connected_components(graph, directed=False)[1]
    return same, near if np.bincount(near, minlength=1).max() <= max(2, LARGEST_SHARE * size) else same
