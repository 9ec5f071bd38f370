"""Bags from a table with one instance per row, of any length each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import shown
from whichtoken.data.table_files import column_names, stream_table
from whichtoken.data.table_files import numbers as numbers
from whichtoken.errors import UsageError
from whichtoken.estimators.bags import Bags


@dataclass(frozen=True, eq=False)
class BagTable:
    """Bags in the order in which they first appear."""

    bags: Bags
    ids: NDArray[Any]  # (n,)
    labels: NDArray[Any] | None  # (n,)
    features: tuple[str, ...]


def read_bag_table(
    path: Path,
    bag: str = "bag",
    label: str | None = "label",
    features: Sequence[str] | None = None,
    separator: str | None = None,
) -> BagTable:
    """Read a table piece by piece.

    Parameters
    ----------
    path : .csv, .tsv, .parquet or .jsonl
    bag, label : str
        Columns of the bag's id and of its label, which is the same in all rows of a bag; None for no labels.
    features : sequence of str, optional
        Columns of the instances; all the others by default.
    """
    special = [bag] if label is None else [bag, label]
    if features is None:
        features = [name for name in column_names(path, separator=separator) if name not in special]
    if not features:
        raise UsageError(f"{shown(path)} has no feature columns beside {shown(', '.join(special))}")
    tokens, ids, labels = [], [], []
    for piece in stream_table(path, [*special, *features], separator=separator):
        tokens.append(numbers(path, piece, features))
        ids.append(piece[bag].to_numpy(dtype=object))
        if label is not None:
            labels.append(piece[label].to_numpy(dtype=object))
    if not sum(map(len, tokens)):
        raise UsageError(f"{shown(path)} holds no rows")
    return _gathered(path, np.concatenate(tokens), np.concatenate(ids), labels, tuple(features))


def whole_numbers_where_possible(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels that were read as text as whole numbers, if all of them are."""
    texts = [str(label) for label in labels]
    if all(re.fullmatch(r"-?\d+", text) for text in texts):
        return np.array([int(text) for text in texts])
    return np.array(texts)


def _gathered(
    path: Path, tokens: NDArray[np.float64], ids: NDArray[Any], pieces: list[NDArray[Any]], features: tuple[str, ...]
) -> BagTable:
    import pandas as pd

    codes, names = pd.factorize(ids)
    if (codes < 0).any():
        raise UsageError(f"{shown(path)}: row {int(np.argmax(codes < 0)) + 1} names no bag")
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))])
    labels = None
    if pieces:
        every = whole_numbers_where_possible(np.concatenate(pieces))[order]
        labels = every[starts[:-1]]
        mixed = np.flatnonzero(every != np.repeat(labels, np.diff(starts)))
        if mixed.size:
            raise UsageError(
                f"{shown(path)}: bag {shown(names[codes[order[mixed[0]]]])} has several labels; a bag has one"
            )
    in_order = bool((np.diff(codes) >= 0).all())
    return BagTable(Bags(tokens if in_order else tokens[order], starts), np.asarray(names), labels, features)
