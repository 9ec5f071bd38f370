"""Documents some at a time: of a matrix in memory, or by partition where Dask's workers hold them.

What a fit needs of all documents is a sum over them: of counts, of losses with their slopes, of a matrix times a vector. So one
solver serves both stores. Sums of partitions are added in their order, some at a time, whichever worker has them: the result
depends on the partitions and not on the workers. What a lost worker held is computed again from its source.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.errors import UsageError

BLOCK = 1 << 16  # documents worked on together, where that saves temporary arrays
MERGED = 4  # neighboring results that are merged at a time: neighbors are mostly with one worker


@dataclass(frozen=True, eq=False)
class DaskRows:
    """A matrix whose rows stay with Dask's workers, by partition; or anything else that has rows."""

    parts: Sequence[Any]  # delayed
    starts: NDArray[np.int64]  # of the rows of each partition, (partitions + 1,)
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.starts[-1]), self.columns

    def __getitem__(self, rows: Any) -> sparse.csr_array:
        """Some of the rows, in their order here, in this process."""
        chosen = np.zeros(self.shape[0], bool)
        chosen[rows] = True
        return sparse.csr_array(sparse.vstack(compute_for_fit(*self.apply(_take, by_row=[chosen])), format="csr"))

    def apply(self, function: Callable[..., Any], *shared: Any, by_row: Sequence[Any] = ()) -> list[Any]:
        """What a function will give for each partition, its own rows of some arrays, and what all of them need."""
        from dask.delayed import delayed

        call, shared = delayed(function), tuple(delayed(item, traverse=False) for item in shared)
        ends = zip(self.starts, self.starts[1:], strict=False)
        rows = [[None if array is None else array[first:last] for array in by_row] for first, last in ends]
        return [call(part, *own, *shared) for part, own in zip(self.parts, rows, strict=True)]

    def map(
        self, function: Callable[..., Any], *shared: Any, by_row: Sequence[Any] = (), columns: int | None = None
    ) -> DaskRows:
        """What it gives, computed whenever it is asked for; with another number of columns where that is given."""
        parts = self.apply(function, *shared, by_row=by_row)
        return replace(self, parts=parts, columns=self.columns if columns is None else columns)

    def keep(self) -> DaskRows:
        """The same, computed once; the workers keep it for as long as it is needed here."""
        return replace(self, parts=compute_for_fit(*self.parts, verb="persist"))

    def where(self, chosen: NDArray[np.bool_]) -> DaskRows:
        """Some of the rows, where they are."""
        return replace(self.map(_take, by_row=[chosen]), starts=np.cumsum([0, *chosen])[self.starts])

    def sum(self, function: Callable[..., Any], *shared: Any, by_row: Sequence[Any] = ()) -> Any:
        """The sum of what it gives: an array, or a tuple of such."""
        return compute_for_fit(merged(self.apply(function, *shared, by_row=by_row), _sum))[0]


def sum_blocks(matrix: Any, function: Callable[..., Any], *shared: Any, by_row: Sequence[Any] = ()) -> Any:
    """The sum over blocks of rows of what a function gives for a block, its rows of some arrays, and what all of them need."""
    if isinstance(matrix, DaskRows):
        return matrix.sum(function, *shared, by_row=by_row)
    return _sum(
        function(matrix[rows], *(None if array is None else array[rows] for array in by_row), *shared)
        for rows in (slice(first, first + BLOCK) for first in range(0, max(matrix.shape[0], 1), BLOCK))
    )


def map_rows(matrix: Any, function: Callable[..., Any], *shared: Any, keep: bool = False, **options: Any) -> Any:
    """What a function gives for the rows of a matrix, where they are: as of `DaskRows.map`, or kept there."""
    if isinstance(matrix, DaskRows):
        found = matrix.map(function, *shared, **options)
        return found.keep() if keep else found
    return function(matrix, *options.get("by_row", ()), *shared)


def _sum(parts: Iterable[Any]) -> Any:
    """In their order."""
    return reduce(lambda one, two: tuple(map(add, one, two)) if isinstance(one, tuple) else one + two, parts)


def _take(part: Any, chosen: NDArray[np.bool_]) -> Any:
    return part[chosen]


def merged(parts: Sequence[Any], merge: Callable[[Sequence[Any]], Any]) -> Any:
    """All parts as one, some neighbors at a time."""
    from dask.delayed import delayed

    call = delayed(merge)
    while len(parts) > 1:
        parts = [call(parts[first : first + MERGED]) for first in range(0, len(parts), MERGED)]
    return parts[0]


def compute_for_fit(*parts: Any, names: Sequence[Any] = (), verb: str = "compute") -> Any:
    """What parts of a Dask graph give; what is wrong with its columns, of these names, or its scheduler in a sentence."""
    import dask

    try:
        with warnings.catch_warnings():
            # the labels are part of the graph, so that a worker that takes over has them
            warnings.filterwarnings("ignore", "Sending large graph")
            return getattr(dask, verb)(*parts)
    except KeyError as error:
        if error.args[0] not in names:
            raise
        raise UsageError(f"a partition has no column {error}; all partitions must have the same columns") from error
    except Exception as error:
        if not type(error).__module__.startswith("distributed"):
            raise
        lost = f"the Dask scheduler or its workers are gone ({type(error).__name__}); nothing was fitted, so fit again"
        raise UsageError(lost) from error
