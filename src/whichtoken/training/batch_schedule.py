"""Which tokens each batch of an epoch touches, and how many steps pass before each is touched again."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int32]


class Schedule(NamedTuple):
    """The batches of one epoch and the tokens they touch; entries of batch t are `bounds[t]:bounds[t + 1]`."""

    order: NDArray[np.int64]  # (documents,) batch t is order[starts[t]:starts[t + 1]]
    starts: NDArray[np.int64]  # (steps + 1,)
    bounds: NDArray[np.int64]  # (steps + 1,)
    tokens: Integers  # (entries,) distinct tokens of a batch, ascending: neighbours in memory are visited in a row
    missed: Integers  # (entries,) steps until the token is touched again, or until the epoch ends
    unseen: NDArray[np.bool_]  # (entries,) the batch before did not touch it
    before: Integers  # (vocabulary,) steps before the first touch


def batch_schedule(
    indptr: Integers, indices: Integers, vocabulary: int, order: NDArray[np.int64], batch_size: int
) -> Schedule:
    """The schedule of one pass over the documents in `order`, `batch_size` at a time."""
    starts = np.append(np.arange(0, len(order), batch_size), len(order))
    steps = len(starts) - 1
    tokens = np.empty(min(int(indptr[-1]), steps * vocabulary), dtype=np.int32)
    missed, unseen = np.empty_like(tokens), np.empty(len(tokens), dtype=np.bool_)
    bounds, before = np.zeros(steps + 1, dtype=np.int64), np.full(vocabulary, steps, dtype=np.int32)
    entries = _touches(indptr, indices, order, starts, tokens, bounds, np.full(vocabulary, -1))
    for first, last in pairwise(bounds):
        tokens[first:last].sort()
    _gaps(tokens, bounds, missed, unseen, before)
    return Schedule(order, starts, bounds, tokens[:entries], missed[:entries], unseen[:entries], before)


@njit(cache=True, nogil=True)
def _touches(
    indptr: Integers,
    indices: Integers,
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    tokens: Integers,
    bounds: NDArray[np.int64],
    last: NDArray[np.int64],
) -> int:
    entry = 0
    for step in range(len(starts) - 1):
        for row in order[starts[step] : starts[step + 1]]:
            for token in indices[indptr[row] : indptr[row + 1]]:
                if last[token] != step:
                    tokens[entry] = token
                    last[token] = step
                    entry += 1
        bounds[step + 1] = entry
    return entry


@njit(cache=True, nogil=True)
def _gaps(
    tokens: Integers,
    bounds: NDArray[np.int64],
    missed: Integers,
    unseen: NDArray[np.bool_],
    following: Integers,
) -> None:
    """Fill `missed` walking backwards and `unseen` forwards; `following` ends as the step of the first touch."""
    for step in range(len(bounds) - 2, -1, -1):
        for entry in range(bounds[step], bounds[step + 1]):
            missed[entry] = following[tokens[entry]] - step - 1
            following[tokens[entry]] = step
    fresh = np.zeros(len(following), dtype=np.bool_)  # touched by the batch before
    for entry in range(bounds[-1]):
        unseen[entry] = not fresh[tokens[entry]]
        fresh[tokens[entry]] = missed[entry] == 0
