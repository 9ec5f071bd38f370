"""Columns with gaps and texts as columns of numbers, in a way that is fixed by the training rows.

A gap in a column of numbers gets the median of the training rows. A column of texts becomes one column of 0 and 1 for each
text that the training rows hold; a gap, and a text that they do not hold, is 0 in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.mixed_columns import MixedColumns
from whichtoken.data.table_files import as_number
from whichtoken.display.text import counted
from whichtoken.errors import UsageError

Array = NDArray[np.float64]


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
        return ColumnEncoding(
            tuple(columns), fills, {name: self.levels[name] for name in columns if name in self.levels}
        )

    def encode(self, table: MixedColumns) -> Array:
        """Numbers (n, names); the table may hold other columns too, and its columns of texts may have other levels."""
        parts = []
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
        return {
            "columns": list(self.columns),
            "fills": self.fills,
            "levels": {name: list(levels) for name, levels in self.levels.items()},
        }

    @classmethod
    def from_json(cls, stored: Any) -> ColumnEncoding:
        """What `as_json` described; refuses anything else."""
        try:
            columns = tuple(stored["columns"])
            fills = {str(name): float(fill) for name, fill in stored["fills"].items()}
            levels = {str(name): tuple(map(str, texts)) for name, texts in stored["levels"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError("'table' is not a description of columns") from error
        if sorted(columns) != sorted([*fills, *levels]) or not np.isfinite(list(fills.values())).all():
            raise UsageError("'table' does not describe each of its columns once")
        return cls(columns, fills, levels)

    def notes(self, table: MixedColumns) -> Iterator[str]:
        """What was filled and what was split up, for whoever reads the output of a fit."""
        for name, count in table.gaps.items():
            what = "left 0" if name in self.levels else f"filled with the training median {self.fills[name]:.4g}"
            are = "is" if count == 1 else "are"
            yield f"column '{name}' has {counted(count, 'gap')} in {len(table.values)} rows, which {are} {what}"
        for name, levels in self.levels.items():
            yield f"column '{name}' holds texts and becomes {len(levels)} columns of 0 and 1"
