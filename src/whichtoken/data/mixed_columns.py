"""Columns of numbers and of texts, with gaps, read piece by piece from a user's table.

The policy: a cell is a *gap* if it is empty, null, or says so (NA, N/A, NaN, null, none). A column holds *texts* if most of
its first filled cells are no numbers; then every distinct text is a level. Otherwise it holds numbers, and a cell that is
none is named in an error: it is a slip of the pen, not a category.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import shown
from whichtoken.data.table_files import as_number, numbers
from whichtoken.display.text import counted
from whichtoken.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "<na>", "nat"})
MOST_LEVELS = 50  # more texts than that are names or sentences, not categories


@dataclass(frozen=True, eq=False)
class MixedColumns:
    """Numbers and levels of a table."""

    names: tuple[str, ...]
    values: Array  # (n, columns): a number, the place of a text among its levels, or nan for a gap
    levels: dict[str, tuple[str, ...]]  # of the columns of texts, by the alphabet

    def rows(self, chosen: NDArray[Any]) -> MixedColumns:
        """Some of the rows, by number or by mask."""
        return MixedColumns(self.names, self.values[chosen], self.levels)

    @property
    def gaps(self) -> dict[str, int]:
        """How many gaps the columns have that have any."""
        counts = np.isnan(self.values).sum(axis=0)
        return {name: int(count) for name, count in zip(self.names, counts, strict=True) if count}


class ColumnReader:
    """Takes the pieces of a table one by one, and keeps their numbers and levels."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, tuple(names)
        self.pieces: list[Array] = []
        self.texts: dict[str, dict[str, int]] = {}  # levels of the columns of texts, in the order of their arrival
        self.settled: set[str] = set()  # columns that have shown what they hold

    def add(self, piece: pd.DataFrame) -> None:
        """The next rows."""
        values = np.empty((len(piece), len(self.names)))
        for place, name in enumerate(self.names):
            values[:, place] = self._column(piece, name)
        self.pieces.append(values)

    def finish(self) -> MixedColumns:
        """All rows; levels are put into the order of the alphabet."""
        values = np.concatenate(self.pieces)
        levels = {}
        for name, found in self.texts.items():
            place = self.names.index(name)
            order = sorted(found)
            numbers_of = np.empty(len(order) + 1)
            numbers_of[[found[text] for text in order]], numbers_of[-1] = np.arange(len(order)), np.nan
            column = values[:, place]
            values[:, place] = numbers_of[np.where(np.isnan(column), len(order), column).astype(np.intp)]
            levels[name] = tuple(order)
        empty = np.isnan(values).all(axis=0)
        if empty.any():
            name = shown(self.names[int(empty.argmax())])
            raise UsageError(f"{shown(self.path)}: column '{name}' is empty in every row; leave it out")
        return MixedColumns(self.names, values, levels)

    def _column(self, piece: pd.DataFrame, name: str) -> Array:
        if name in self.texts:
            return self._levels(piece, name)
        try:
            gaps = np.isnan(piece[name].to_numpy(dtype=np.float64))
        except (TypeError, ValueError, OverflowError):
            gaps = np.array([_is_gap(cell) for cell in piece[name]])
            filled = piece.loc[~gaps, name]
            if name not in self.settled and 2 * sum(not np.isnan(as_number(cell)) for cell in filled) < len(filled):
                self.texts[name] = {}
                return self._levels(piece, name)
        values = np.full(len(piece), np.nan)
        if gaps.all():
            return values
        self.settled.add(name)
        values[~gaps] = numbers(self.path, piece[~gaps], [name])[:, 0]
        return values

    def _levels(self, piece: pd.DataFrame, name: str) -> Array:
        known = self.texts[name]
        values = np.full(len(piece), np.nan)
        for row, cell in enumerate(piece[name]):
            if not _is_gap(cell):
                values[row] = known.setdefault(str(cell).strip(), len(known))
        if len(known) > MOST_LEVELS:
            some = ", ".join(f"'{shown(text[:30])}'" for text in list(known)[:3])
            raise UsageError(
                f"{shown(self.path)}: column '{shown(name)}' holds {len(known)} or more different texts, such as {some};"
                f" at most {MOST_LEVELS} are taken as categories, so leave the column out or give it fewer"
            )
        return values


def without_gaps(piece: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows that have all of these columns; they keep their numbers."""
    filled = np.ones(len(piece), dtype=bool)
    for name in columns:
        filled &= ~np.array([_is_gap(cell) for cell in piece[name]], dtype=bool)
    return piece[filled]


def dropped_note(rows: int) -> list[str]:
    """A sentence about rows that were left out, if any were."""
    return [f"{counted(rows, 'row')} with a gap {'was' if rows == 1 else 'were'} left out"] if rows else []


def _is_gap(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and np.isnan(cell)) or str(cell).strip().lower() in GAPS
