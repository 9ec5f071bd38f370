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
    """Minima of hashes of the neighboring pairs of words of each text, (n, 48): the more alike texts are, the more are equal."""
    words = np.array([crc32(name.encode(errors="surrogatepass")) for name in sequences.names] or [0], np.uint32)
    codes = words[sequences.ids]
    # a text of n words has n + 1 shingles, as its beginning and its end count as words; so even an empty one has one
    places = np.arange(len(sequences) + 1) + sequences.starts
    left, right = np.full(places[-1], 17, np.uint32), np.full(places[-1], 29, np.uint32)
    rows = np.repeat(np.arange(len(sequences)), sequences.lengths)
    left[np.arange(len(codes)) + rows + 1], right[np.arange(len(codes)) + rows] = codes, codes
    shingles = _mix_bits(_mix_bits(left) + right)
    factors = np.random.default_rng(0).integers(1 << 31, 1 << 32, BANDS * ROWS, dtype=np.uint32) | np.uint32(1)
    found = np.empty((BANDS * ROWS, len(sequences)), np.uint32)
    # some texts at a time, whose shingles stay in the cache of the processor
    for rows in np.split(np.arange(len(sequences)), np.flatnonzero(np.diff(places[:-1] // CACHED)) + 1):
        if rows.size:
            here, starts = shingles[places[rows[0]] : places[rows[-1] + 1]], places[rows] - places[rows[0]]
            for number, factor in enumerate(factors):
                found[number, rows] = np.minimum.reduceat(_mix_bits(here * factor), starts)
    return np.ascontiguousarray(found.T)


def _mix_bits(codes: Hashes) -> Hashes:
    mixed = (codes ^ (codes >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return np.asarray(mixed ^ (mixed >> np.uint32(15)))


def _hash_rows(signatures: Hashes) -> NDArray[np.uint64]:
    """One number of 64 bits for each row: two of ten million rows that differ get the same one once in 400 000 times."""
    joined = np.zeros(len(signatures), np.uint64)
    for column in signatures.T:
        joined = (joined ^ column) * np.uint64(0x9E3779B97F4A7C15)
        joined ^= joined >> np.uint64(29)
    return joined


def duplicate_groups(signatures: Hashes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number of the group of each text, (n,): of those with the same words, and of those with nearly the same."""
    same = np.unique(_hash_rows(signatures), return_inverse=True)[1]
    edges = []
    for band in range(BANDS):
        part = _hash_rows(signatures[:, ROWS * band : ROWS * (band + 1)])
        _, first, codes = np.unique(part, return_index=True, return_inverse=True)
        others = np.flatnonzero(first[codes] != np.arange(len(codes)))
        edges.append(np.stack([others, first[codes[others]]]))
    one, two = np.unique(np.concatenate(edges, axis=1), axis=1)
    alike = np.mean(signatures[one] == signatures[two], axis=1) >= ALIKE
    size = len(signatures)
    graph = sparse.coo_array((np.ones(alike.sum(), bool), (one[alike], two[alike])), shape=(size, size))
    near = connected_components(graph, directed=False)[1]
    return same, near if np.bincount(near, minlength=1).max() <= max(2, LARGEST_SHARE * size) else same
