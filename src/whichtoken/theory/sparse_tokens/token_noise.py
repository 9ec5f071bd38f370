"""Noise of the tokens along one direction, as draws: low-discrepancy points, and a short form for long sequences.

What attention and likelihood ratios need of a group of tokens are sums of smooth functions over them. Of a long group
only the highest tokens are drawn one by one; the rest, which no such sum resolves, are counted in narrow bins. That is
exact but for the width of the bins: a sum of exp(tau z) is off by less than (tau * BIN)^2 / 24 of it, a thousandth at
tau = 3, and beyond that temperature the highest tokens decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

Array = NDArray[np.float64]

LOG2_E = 1.4426950408889634
LN_2, LN_2_REST = 0.693147180369123816490, 1.90821492927058770002e-10  # ln 2, in two parts
WHOLE = 1.5 * 2.0**52  # what is added to it keeps its whole part in the last bits
FACTORIALS = (39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0)
FARTHEST = -700.0  # exponent below which an exponential stays what it is there

LONG = 2048  # tokens above which a sequence is drawn in its short form
GROUP = 512  # tokens above which a group is
TOP = 128  # highest tokens of a group, on average, that are drawn one by one
BIN, LOWEST = 0.05, -5.0  # width of the bins, and where they begin
SHORT_FORM = 512  # numbers that stand for a group, about
CHUNK_POINTS = 1 << 11
CHUNK_FLOATS = 1 << 21  # 16 MB per temporary, whatever the length
KEPT_FLOATS = 1 << 22


@dataclass(frozen=True)
class Tokens:
    """Draws of a group of tokens."""

    values: Array  # (points, k)
    counts: Array  # (points, k), or (1, k) where alike for all: how many tokens a value stands for


@dataclass(frozen=True)
class Draws:
    """Noise of sequences, and one more Gaussian each."""

    gauss: Array  # (points,)
    signal: Tokens  # of the tokens that carry the signal in a positive sequence
    rest: Tokens


def drawn_length(length: int) -> int:
    """Numbers that are drawn, about, for a sequence of this length."""
    return length if length <= LONG else 2 * SHORT_FORM


def kept_points(points: int, length: int) -> int:
    """As many of these points, a power of two, as a search can keep in memory for sequences of this length."""
    return min(points, max(1 << 7, 1 << (KEPT_FLOATS // (drawn_length(length) + 1)).bit_length() - 1))


def token_chunks(points: int, length: int, signal_tokens: int, seed: int) -> Iterator[Draws]:
    """Noise of `points` sequences in chunks."""
    if length > LONG:
        for start in range(0, points, CHUNK_POINTS):
            yield _first(_short_form(length, signal_tokens, seed, start // CHUNK_POINTS), points - start)
        return
    for normals in normal_chunks(points, length + 1, seed):
        # copies, so that compiled code meets one memory layout only
        signal, rest = normals[:, 1 : 1 + signal_tokens].copy(), normals[:, 1 + signal_tokens :].copy()
        counts = (np.ones((1, group.shape[1])) for group in (signal, rest))
        yield Draws(normals[:, 0], *map(Tokens, (signal, rest), counts))


def _first(draws: Draws, points: int) -> Draws:
    if points >= len(draws.gauss):
        return draws
    groups = (
        Tokens(group.values[:points], group.counts[:points] if len(group.counts) > 1 else group.counts)
        for group in (draws.signal, draws.rest)
    )
    return Draws(draws.gauss[:points], *groups)


@lru_cache(maxsize=4)  # searches over alignment and temperature meet the same noise again; 40 MB each at most
def _short_form(length: int, signal_tokens: int, seed: int, chunk: int) -> Draws:
    rng = np.random.default_rng([seed, chunk])
    gauss = rng.standard_normal(CHUNK_POINTS)
    return Draws(gauss, _group(signal_tokens, rng), _group(length - signal_tokens, rng))


def _group(size: int, rng: np.random.Generator) -> Tokens:
    if size <= GROUP:
        return Tokens(rng.standard_normal((CHUNK_POINTS, size)), np.ones((1, size)))
    top_share = TOP / size
    edges = np.linspace(LOWEST, -ndtri(top_share), 1 + math.ceil((-ndtri(top_share) - LOWEST) / BIN))
    below, density = np.append(ndtr(edges[:-1]), 1 - top_share), np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    share = np.diff(below, prepend=0.0)
    centers = np.diff(-density, prepend=0.0) / share  # mean of a Gaussian in each bin
    counts = rng.multinomial(size, np.append(share, top_share), size=CHUNK_POINTS)
    most = int(counts[:, -1].max())
    tops = -ndtri(top_share * (1 - rng.random((CHUNK_POINTS, most))))
    drawn = np.arange(most) < counts[:, -1:]
    values = np.hstack([np.broadcast_to(centers, (CHUNK_POINTS, centers.size)), tops])
    return Tokens(values, np.hstack([counts[:, :-1], drawn]).astype(float))


def normal_chunks(points: int, dimensions: int, seed: int) -> Iterator[Array]:
    """Standard Gaussian points in chunks of shape (k, dimensions): scrambled Sobol."""
    if points * dimensions <= KEPT_FLOATS:
        kept = _kept_normals(dimensions, seed)
        if len(kept[0]) < points:
            (kept[0],) = _fresh_normals([points], dimensions, seed)
            kept[0].flags.writeable = False
        yield kept[0][:points]
        return
    step = 1 << max(0, (CHUNK_FLOATS // dimensions).bit_length() - 1)  # Sobol points are balanced in powers of two
    yield from _fresh_normals([min(step, points - start) for start in range(0, points, step)], dimensions, seed)


@lru_cache(maxsize=4)  # searches over alignment and temperature meet the same noise again; 32 MB each at most
def _kept_normals(dimensions: int, seed: int) -> list[Array]:
    """A place for as many points as were asked for yet; fewer of them are the first of these."""
    return [np.empty((0, dimensions))]


@lru_cache(maxsize=8)  # for thousands of dimensions the scramble costs more than the points; 3 MB each for 10 000
def _sobol(dimensions: int, seed: int) -> qmc.Sobol:
    return qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))


def _fresh_normals(sizes: list[int], dimensions: int, seed: int) -> Iterator[Array]:
    engine = deepcopy(_sobol(dimensions, seed))  # drawing moves it on
    for size in sizes:
        # a scrambled coordinate can be exactly 0 or 1, where the inverse is infinite
        yield ndtri(np.clip(engine.random(size), 1e-12, 1 - 1e-12))


@njit(cache=True, nogil=True, fastmath=False)
def exponentials(exponents, powers, out):  # type: ignore[no-untyped-def]
    """Exponentials of numbers up to 0, written so that compilers work on several at a time; `powers` is scratch."""
    bits, shifts = out.view(np.int64), powers.view(np.int64)
    for t in range(exponents.size):
        exponent = min(max(exponents[t], FARTHEST), 0.0)
        powers[t] = exponent * LOG2_E + WHOLE
        power = powers[t] - WHOLE
        x = (exponent - power * LN_2) - power * LN_2_REST
        sum_ = 1 / 479001600.0
        for factorial in FACTORIALS:
            sum_ = sum_ * x + 1 / factorial
        out[t] = sum_
    for t in range(exponents.size):
        bits[t] += shifts[t] << 52
