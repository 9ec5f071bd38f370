"""Texts that repeat others, word for word or nearly: found by hashed shingles, in time that grows with the number of words."""

from __future__ import annotations

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

Hashes = NDArray[np.uint32]


def text_signatures(sequences: TokenSequences) -> Hashes:
    """Minima of hashes of the neighboring pairs of words of each text, (48, n): the more alike texts are, the more are equal."""
    words = np.array([crc32(name.encode(errors="surrogatepass")) for name in sequences.names] or [0], np.uint32)
    factors = np.random.default_rng(0).integers(1 << 31, 1 << 32, BANDS * ROWS, dtype=np.uint32) | np.uint32(1)
    found = np.empty((BANDS * ROWS, len(sequences)), np.uint32)
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


def _hash_columns(signatures: Hashes) -> NDArray[np.uint64]:
    """One number of 64 bits for each column: two of ten million that differ get the same one once in 400 000 times."""
    joined = np.zeros(signatures.shape[1], np.uint64)
    for row in signatures:
        joined = (joined ^ row) * np.uint64(0x9E3779B97F4A7C15)
        joined ^= joined >> np.uint64(29)
    return joined


def duplicate_groups(*signatures: Hashes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number of the group of each text, (n,): of those with the same words, and of those with nearly the same.

    The signatures may come in parts, some texts after the other.
    """
    same = np.unique(np.concatenate([_hash_columns(part) for part in signatures]), return_inverse=True)[1]
    edges = []
    for band in range(BANDS):
        rows = slice(ROWS * band, ROWS * (band + 1))
        hashes = np.concatenate([_hash_columns(part[rows]) for part in signatures])
        _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
        others = np.flatnonzero(first[codes] != np.arange(len(codes)))
        edges.append(np.stack([others, first[codes[others]]]))
    one, two = np.unique(np.concatenate(edges, axis=1), axis=1)
    shared = np.zeros(len(one), np.int16)
    for parts in zip(*signatures, strict=True):
        row = np.concatenate(parts)
        shared += row[one] == row[two]
    alike, size = shared >= ALIKE * BANDS * ROWS, len(same)
    graph = sparse.coo_array((np.ones(alike.sum(), bool), (one[alike], two[alike])), shape=(size, size))
    near = connected_components(graph, directed=False)[1]
    return same, near if np.bincount(near, minlength=1).max() <= max(2, LARGEST_SHARE * size) else same
