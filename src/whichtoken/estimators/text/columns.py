"""Columns of numbers and categories beside the texts: a table of both, and what the columns add to a decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.estimators.columns import ColumnEncoding, ColumnReader, MixedColumns
from whichtoken.estimators.common import is_partitioned
from whichtoken.estimators.text.blocks import compute_for_fit
from whichtoken.estimators.text.counting import table_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TextColumnReason(Shown):
    """What one column does in one document."""

    column: str
    value: str
    contribution: float  # weight x distance from the training mean: what it adds to the decision


@dataclass(frozen=True, eq=False)
class TextTable:
    """Texts and the columns beside them."""

    texts: Iterable[str]
    columns: MixedColumns
    text: str | None = None  # name of the column of the texts, where it is known

    @classmethod
    def of(cls, X: Any, columns: Sequence[str], text: str | None, *, learned: bool = True) -> TextTable:
        """From a table of pandas, polars, Arrow or `datasets`; its only other column holds the texts, unless `text` names one.

        Of a Dask frame the columns come to this process, and the texts stay where they are.
        """
        if isinstance(X, TextTable):
            return X
        distributed = is_partitioned(X)
        table = X if distributed else table_of(X)
        names = list(getattr(table, "columns", []))
        if not names:
            raise ValueError(
                f"columns={list(columns)} are columns of a table; X of type {type(X).__name__} is none"
                " (a ColumnTransformer gives one after set_output(transform='pandas'))"
            )
        for name in (*columns, *([] if text is None else [text])):
            if (count := names.count(name)) != 1:
                many = "no column" if not count else f"{count} columns"
                raise ValueError(f"X has {many} {name!r}; columns: {', '.join(map(str, names[:8]))}")
        others = [str(name) for name in names if name not in columns]
        if text is None and len(others) != 1:
            raise ValueError(
                f"X has {len(others)} columns besides {list(columns)}; name the column of the texts with text="
            )
        text = text or others[0]
        reader = ColumnReader(Path("X"), columns)
        beside = table[list(columns)]
        here = compute_for_fit(beside, names=names)[0].reset_index(drop=True) if distributed else beside.to_pandas()
        reader.add(here)
        return cls(table[text] if distributed else table[text].to_list(), reader.finish(learned=learned), text)

    @classmethod
    def blank(cls, encoding: ColumnEncoding) -> TextTable:
        """One row without anything, for the form of an answer."""
        gaps = np.full((1, len(encoding.columns)), np.nan)
        return cls(["-"], MixedColumns(encoding.columns, gaps, dict.fromkeys(encoding.levels, ())))

    def rows(self, chosen: NDArray[Any]) -> TextTable:
        """Some of the rows, by number or by mask."""
        texts = list(self.texts)
        return TextTable([texts[row] for row in np.arange(len(texts))[chosen]], self.columns.rows(chosen))


@dataclass(frozen=True, eq=False)
class ColumnPart:
    """What the columns add to the outputs, relative to a document with the mean of the training documents in each."""

    encoding: ColumnEncoding
    means: Array  # of what the columns become, (k,)
    scales: Array  # standard deviations, (k,)
    weights: Array  # by standard deviation, (k, outputs)
    text: str | None  # name of the column of the texts

    @classmethod
    def of(cls, columns: MixedColumns, text: str | None) -> ColumnPart:
        """From the training rows; the weights come from the fit."""
        encoding = ColumnEncoding.of(columns)
        numbers = encoding.encode(columns)
        scales = numbers.std(axis=0)
        return cls(
            encoding, numbers.mean(axis=0), np.where(scales > 0, scales, 1.0), np.zeros((numbers.shape[1], 0)), text
        )

    def standardized(self, columns: MixedColumns) -> Array:
        """What the fit sees of the columns, (n, k)."""
        return np.asarray((self.encoding.encode(columns) - self.means) / self.scales)

    def outputs(self, columns: MixedColumns) -> Array:
        """What the columns add, (n, outputs)."""
        return np.asarray(self.standardized(columns) @ self.weights)

    def reasons(self, columns: MixedColumns, row: int, weights: Array) -> tuple[TextColumnReason, ...]:
        """What each column of a row adds by some weights (k,), the largest first."""
        added = self.standardized(columns.rows(np.array([row])))[0] * weights
        ends = np.cumsum([len(self.encoding.names_of(name)) for name in self.encoding.columns])
        found = [
            TextColumnReason(name, columns.shown(name, row), float(part.sum()))
            for name, part in zip(self.encoding.columns, np.split(added, ends[:-1]), strict=True)
        ]
        return tuple(sorted(found, key=lambda reason: -abs(reason.contribution)))
