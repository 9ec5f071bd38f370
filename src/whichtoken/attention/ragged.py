"""Sequences of any length in one array: bags of vectors, sequences of tokens and counts of words, never padded.

All items lie one after the other, and `starts` says where each sequence begins. An item is a vector (`values`), an entry of a
vocabulary (`tokens`) or both, and may occur several times (`amounts`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.checks import as_csr
from whichtoken.display.shown import Shown

Floats = NDArray[np.floating[Any]]
ROWS = 1 << 14  # copied at a time


@dataclass(frozen=True, eq=False)
class RaggedArray(Shown):
    """Sequences of different lengths without padding: reach for it where a 3-D array would need a mask.

    The attention kernels and `BagClassifier` take it as it is. Arrays are kept as they are, without a copy.

    Parameters
    ----------
    starts : array of shape (n + 1,)
        Ascending from 0 to N: sequence i holds the items starts[i] to starts[i + 1] - 1; it may be empty.
    values : array of shape (N, d), optional
        Vectors, float32 or float64.
    tokens : array of shape (N,), optional
        Entries of a vocabulary.
    amounts : array of shape (N,), optional
        How often each item occurs, at least 0; 1 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.attention import RaggedArray
    >>> bags = RaggedArray.of([np.ones((2, 3)), np.zeros((4, 3))])
    >>> len(bags), bags.lengths.tolist(), bags.vectors.shape
    (2, [2, 4], (6, 3))
    >>> bags[1:].starts.tolist(), bags[1].shape
    ([0, 4], (4, 3))
    """

    starts: NDArray[np.int64]
    values: Floats | None = None
    tokens: NDArray[np.integer[Any]] | None = None
    amounts: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        starts = check_starts(self.starts)
        size = int(starts[-1])
        object.__setattr__(self, "starts", starts)
        if self.values is None and self.tokens is None:
            raise ValueError("a ragged array needs values (vectors), tokens (entries of a vocabulary) or both")
        if self.values is not None:
            object.__setattr__(self, "values", _check_values(self.values, size))
        if self.tokens is not None:
            object.__setattr__(self, "tokens", check_tokens(self.tokens, size))
        if self.amounts is not None:
            object.__setattr__(self, "amounts", check_amounts(self.amounts, size))

    @classmethod
    def of(cls, data: Any, starts: ArrayLike | None = None) -> RaggedArray:
        """A ragged array from any usual container.

        Parameters
        ----------
        data
            An array (n, T, d), a list of n arrays (T_i, d), an array (N, d) with `starts`, a scipy matrix of counts (n,
            vocabulary) whose rows are sequences, or a RaggedArray.
        starts : (n + 1,), optional
            For an array (N, d) only.
        """
        if isinstance(data, RaggedArray):
            return data
        if sparse.issparse(data):
            counts = as_csr("items", data)
            return cls(counts.indptr, tokens=counts.indices, amounts=counts.data)
        if isinstance(data, list | tuple):
            if not data:
                raise ValueError("a list of sequences must not be empty: the first one gives the width")
            parts = [as_floats(f"sequence {i}", part) for i, part in enumerate(data)]
            for i, part in enumerate(parts):
                if part.ndim != 2 or part.shape[1:] != parts[0].shape[1:]:
                    raise ValueError(
                        f"sequence {i} of shape {part.shape} must be (length, width), with the width of sequence 0"
                    )
            return cls(starts_of([len(part) for part in parts]), np.concatenate(parts))
        table = as_floats("items", data)
        if table.ndim == 3 and starts is None:
            n, length, width = table.shape
            return cls(np.arange(n + 1) * length, np.ascontiguousarray(table).reshape(n * length, width))
        if table.ndim == 2 and starts is not None:
            return cls(np.asarray(starts), table)
        raise ValueError(
            f"items of shape {table.shape} must be (sequences, length, width), (all items, width) with starts, a list of arrays"
            " (length, width), or a sparse matrix of counts"
        )

    @classmethod
    def unchecked(cls, starts: Any, values: Any = None, tokens: Any = None, amounts: Any = None) -> Self:
        """Arrays that are known to fit together: a check would read all of them once more."""
        made = cls.__new__(cls)
        made.__dict__.update(starts=starts, values=values, tokens=tokens, amounts=amounts)
        return made

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def vectors(self) -> Floats:
        """The values, where there must be some, (N, d)."""
        if self.values is None:
            raise ValueError("these items are entries of a vocabulary without vectors; give values, (items, width)")
        return self.values

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return int(self.vectors.shape[1])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Items of each sequence, (n,); an item that occurs twice is one."""
        return np.diff(self.starts)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, rows: Any) -> Any:
        """Vectors (or tokens) of one sequence, a view; or some sequences, by a slice, a list of numbers or a mask.

        A slice of step 1 gives views, everything else copies.
        """
        if isinstance(rows, int | np.integer):
            i = range(len(self))[rows]
            items = self.vectors if self.tokens is None else self.tokens if self.values is None else self.values
            return items[self.starts[i] : self.starts[i + 1]]
        chosen = np.arange(len(self))[rows]
        if chosen.ndim != 1:
            raise ValueError(f"rows={rows!r} must be a slice, a list of numbers or a mask of sequences")
        lengths = self.lengths[chosen]
        starts = starts_of(lengths)
        places: Any
        if isinstance(rows, slice) and rows.step in (None, 1) and len(chosen):
            places = slice(int(self.starts[chosen[0]]), int(self.starts[chosen[-1] + 1]))
        else:
            places = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], lengths)
        parts = (
            None if part is None else _take_rows(part, places) for part in (self.values, self.tokens, self.amounts)
        )
        made = self.unchecked(starts, *parts)
        # what a subclass adds, such as names of tokens, is the same for any part
        made.__dict__.update(
            {name: part for name, part in self.__dict__.items() if name not in (*made.__dict__, "lengths")}
        )
        return made

    def split(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """One array per sequence of something that is given for every item, (N, ...)."""
        return np.split(array, self.starts[1:-1])


def on_disk(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """An array in a file without a name, mapped to memory: it is gone when nobody uses it any more."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, kind, "w+", shape=shape)


def _take_rows(array: NDArray[Any], places: Any) -> NDArray[Any]:
    """Some rows of an array; of one that is mapped to memory, because it is large, mapped likewise."""
    if not isinstance(array, np.memmap) or isinstance(places, slice):
        return np.asarray(array[places])
    found = on_disk((len(places), *array.shape[1:]), array.dtype)
    for first in range(0, len(places), ROWS):
        found[first : first + ROWS] = array[places[first : first + ROWS]]
    return found


def starts_of(lengths: ArrayLike | Sequence[int]) -> NDArray[np.int64]:
    """Where sequences of these lengths (n,) begin, and where the last one ends: (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64, copy=False)


def as_floats(name: str, array: Any) -> Floats:
    """The array itself if it is of single or double precision, otherwise in double precision."""
    found = np.asarray(array)
    if found.dtype in (np.float32, np.float64):
        return found
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} of type {found.dtype} must be real numbers")
    return found.astype(np.float64)


def check_starts(starts: Any) -> NDArray[np.int64]:
    """Where sequences begin, (n + 1,): ascending whole numbers from 0."""
    found = np.asarray(starts)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise ValueError(
            f"starts of shape {found.shape} and type {found.dtype} must be whole numbers, (sequences + 1,)"
        )
    if found[0] != 0 or (found[1:] < found[:-1]).any():
        raise ValueError(
            "starts must begin with 0 and never descend: sequence i lies between starts[i] and starts[i + 1]"
        )
    return found.astype(np.int64, copy=False)


def _check_values(values: Any, size: int) -> Floats:
    found = as_floats("values", values)
    if found.ndim != 2 or len(found) != size:
        raise ValueError(f"values of shape {found.shape} must be (items, width) with {size} items, to match starts")
    # the sum of finite numbers is finite unless it overflows: only then look at each
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(found.sum())
    if suspicious and not np.isfinite(found).all():
        raise ValueError("values contain NaN or infinity; they must be finite")
    return found


def check_tokens(tokens: Any, size: int, vocabulary: int | None = None) -> NDArray[Any]:
    """Entries of a vocabulary, (size,)."""
    found = np.asarray(tokens)
    if found.shape != (size,) or found.dtype.kind not in "iu":
        raise ValueError(
            f"tokens of shape {found.shape} and type {found.dtype} must be whole numbers, ({size},), to match starts"
        )
    if size and found.min() < 0:
        raise ValueError(f"tokens hold {found.min()}; entries of a vocabulary are whole numbers, 0 or more")
    if size and vocabulary is not None and found.max() >= vocabulary:
        raise ValueError(f"tokens hold {found.max()}, the vocabulary has only {vocabulary} entries")
    return found


def check_amounts(amounts: Any, size: int) -> NDArray[Any]:
    """Finite numbers of at least 0, (size,)."""
    found = np.asarray(amounts)
    if found.shape != (size,) or found.dtype.kind not in "biuf":
        raise ValueError(
            f"amounts of shape {found.shape} and type {found.dtype} must be numbers, ({size},), to match starts"
        )
    if size and not (found.min() >= 0 and np.isfinite(found.max())):
        raise ValueError(
            f"amounts from {found.min()} to {found.max()} must be finite and at least 0: how often an item occurs"
        )
    return found
