"""Columns of numbers and of texts, with gaps: read piece by piece, and turned into numbers as the training rows fix it.

The policy: a cell is a *gap* if it is empty, null, or says so (NA, N/A, NaN, null, none). A column holds *texts* if most of
its first filled cells are no numbers; then every distinct text is a level. Otherwise it holds numbers, and a cell that is
none is named in an error, as it is a mistake and not a category.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.text import pluralize
from whichtoken.errors import ColumnError, UsageError
from whichtoken.reading import shown
from whichtoken.tables import as_number, numbers

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

    def shown(self, name: str, row: int) -> str:
        """A cell as text; empty for a gap."""
        value = self.values[row, self.names.index(name)]
        if np.isnan(value):
            return ""
        return self.levels[name][int(value)] if name in self.levels else f"{value:g}"

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
        self.numeric: set[str] = set()  # columns that are known to hold numbers

    def add(self, piece: pd.DataFrame) -> None:
        """The next rows."""
        values = np.empty((len(piece), len(self.names)))
        for place, name in enumerate(self.names):
            values[:, place] = self._column(piece, name)
        self.pieces.append(values)

    def finish(self, *, learned: bool = False) -> MixedColumns:
        """All rows; levels are put into the order of the alphabet. A column without any cell only serves what was `learned`."""
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
        if empty.any() and not learned:
            name = self.names[int(empty.argmax())]
            raise ColumnError(f"{shown(self.path)}: column '{shown(name)}' is empty in every row; leave it out", name)
        return MixedColumns(self.names, values, levels)

    def _column(self, piece: pd.DataFrame, name: str) -> Array:
        if name in self.texts:
            return self._levels(piece, name)
        try:
            gaps = np.isnan(piece[name].to_numpy(dtype=np.float64))
        except (TypeError, ValueError, OverflowError):
            gaps = np.array([is_gap(cell) for cell in piece[name]])
            filled = piece.loc[~gaps, name]
            if name not in self.numeric and 2 * sum(not np.isnan(as_number(cell)) for cell in filled) < len(filled):
                self.texts[name] = {}
                return self._levels(piece, name)
        values = np.full(len(piece), np.nan)
        if gaps.all():
            return values
        self.numeric.add(name)
        values[~gaps] = numbers(self.path, piece[~gaps], [name])[:, 0]
        return values

    def _levels(self, piece: pd.DataFrame, name: str) -> Array:
        known = self.texts[name]
        values = np.full(len(piece), np.nan)
        for row, cell in enumerate(piece[name]):
            if not is_gap(cell):
                values[row] = known.setdefault(str(cell).strip(), len(known))
        if len(known) > MOST_LEVELS:
            some = ", ".join(f"'{shown(text[:30])}'" for text in list(known)[:3])
            raise ColumnError(
                f"{shown(self.path)}: column '{shown(name)}' holds {len(known)} or more different texts, such as {some};"
                f" at most {MOST_LEVELS} are taken as categories, so leave the column out or give it fewer",
                name,
            )
        return values


def is_gap(cell: Any) -> bool:
    """Whether a cell holds nothing, or says so."""
    return cell is None or (isinstance(cell, float) and np.isnan(cell)) or str(cell).strip().lower() in GAPS


@dataclass(frozen=True)
class ColumnEncoding:
    """Columns in their order, each with the number for its gaps or with its levels."""

    columns: tuple[str, ...]
    fills: dict[str, float]  # of columns of numbers
    levels: dict[str, tuple[str, ...]]  # of columns of texts

    @classmethod
    def of(cls, table: MixedColumns) -> ColumnEncoding:
        """Learned from the training rows."""
        fills, levels = {}, {}
        for name, values in zip(table.names, table.values.T, strict=True):
            seen = values[~np.isnan(values)]
            if name in table.levels:
                levels[name] = tuple(table.levels[name][int(place)] for place in np.unique(seen))
            else:
                fills[name] = float(np.median(seen)) if seen.size else 0.0
        return cls(table.names, fills, levels)

    def names_of(self, column: str) -> list[str]:
        """Names of what a column becomes."""
        return [f"{column}={level}" for level in self.levels[column]] if column in self.levels else [column]

    @property
    def names(self) -> list[str]:
        """Names of all that comes out."""
        return [name for column in self.columns for name in self.names_of(column)]

    def part(self, columns: Sequence[str]) -> ColumnEncoding:
        """Some of the columns."""
        fills = {name: fill for name, fill in self.fills.items() if name in columns}
        levels = {name: self.levels[name] for name in columns if name in self.levels}
        return ColumnEncoding(tuple(columns), fills, levels)

    def encode(self, table: MixedColumns) -> Array:
        """Numbers (n, names); the table may hold other columns too, and its columns of texts may have other levels."""
        parts = [np.empty((len(table.values), 0))]  # a model may need no column
        for column in self.columns:
            values = table.values[:, table.names.index(column)]
            if column in self.fills:
                if column in table.levels:
                    raise UsageError(
                        f"column '{column}' holds texts, such as '{table.levels[column][0]}'; the model was trained on numbers"
                    )
                parts.append(np.where(np.isnan(values), self.fills[column], values)[:, None])
            else:
                parts.append(self._indicators(column, values, table.levels.get(column)))
        return np.hstack(parts)

    def _indicators(self, column: str, values: Array, levels: Sequence[str] | None) -> Array:
        if levels is None:  # texts that all look like numbers here: of 1, 01 and 1.0 the shortest
            written = {as_number(level): level for level in sorted(self.levels[column], key=len, reverse=True)}
            texts = [None if np.isnan(value) else written.get(float(value)) for value in values]
        else:
            texts = [None if np.isnan(value) else levels[int(value)] for value in values]
        return np.array([[float(text == level) for level in self.levels[column]] for text in texts])

    def as_json(self) -> dict[str, Any]:
        """As a model folder keeps it."""
        levels = {name: list(texts) for name, texts in self.levels.items()}
        return {"columns": list(self.columns), "fills": self.fills, "levels": levels}

    @classmethod
    def from_json(cls, stored: Any) -> ColumnEncoding:
        """What `as_json` described; refuses anything else."""
        from pydantic import TypeAdapter, ValidationError

        try:
            found = TypeAdapter(cls).validate_python(stored)
        except ValidationError as error:
            raise UsageError("'table' is not a description of columns") from error
        once = sorted(found.columns) == sorted([*found.fills, *found.levels])
        if not once or not np.isfinite([*found.fills.values()]).all():
            raise UsageError("'table' does not describe each of its columns once")
        return found

    def notes(self, table: MixedColumns) -> Iterator[str]:
        """Sentences on what was filled and what was encoded, for the output of a fit."""
        for name, count in table.gaps.items():
            what = "left 0" if name in self.levels else f"filled with the training median {self.fills[name]:.4g}"
            are = "is" if count == 1 else "are"
            yield f"column '{name}' has {pluralize(count, 'gap')} in {len(table.values)} rows, which {are} {what}"
        for name, levels in self.levels.items():
            yield f"column '{name}' holds texts and becomes {len(levels)} columns of 0 and 1"
