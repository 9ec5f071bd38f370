"""Bags from a table with one instance per row, of any length each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.bags import Bags
from whichtoken.data.column_roles import check_roles, filled
from whichtoken.data.reading import shown
from whichtoken.data.review_files import label_names
from whichtoken.data.table_files import column_names, stream_table
from whichtoken.data.table_files import numbers as numbers
from whichtoken.errors import UsageError


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
    special = {"bag": bag} | ({} if label is None else {"label": label})
    check_roles([*special.items(), *(("feature", name) for name in features or ())])
    if features is None:
        features = [name for name in column_names(path, separator=separator) if name not in special.values()]
    if not features:
        raise UsageError(f"{shown(path)} has no feature columns besides {shown(', '.join(special.values()))}")
    tokens: list[NDArray[np.float64]] = []
    ids: list[Any] = []
    labels: list[str] = []
    for piece in stream_table(path, [*special.values(), *features], separator=separator):
        filled(path, piece[bag], bag, "bag", len(ids))
        tokens.append(numbers(path, piece, features))
        labels += [] if label is None else label_names(path, piece[label], label, len(ids))
        ids += piece[bag].tolist()
    if not ids:
        raise UsageError(f"{shown(path)} has no rows")
    return _gathered(path, np.concatenate(tokens), ids, labels, tuple(features))


def whole_numbers_where_possible(labels: Iterable[str]) -> NDArray[Any]:
    """Labels that were read as text as whole numbers, if all of them are."""
    texts = list(map(str, labels))
    if all(re.fullmatch(r"-?\d{1,18}", text) for text in texts):  # more digits than an int64 holds stay text
        return np.array([int(text) for text in texts])
    return np.array(texts)


def _gathered(
    path: Path, tokens: NDArray[np.float64], ids: list[Any], names_of_labels: list[str], features: tuple[str, ...]
) -> BagTable:
    import pandas as pd

    codes, names = pd.factorize(np.array(ids, dtype=object))
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))])
    labels = None
    if names_of_labels:
        every = whole_numbers_where_possible(names_of_labels)[order]
        labels = every[starts[:-1]]
        mixed = np.flatnonzero(every != np.repeat(labels, np.diff(starts)))
        if mixed.size:
            name = shown(names[codes[order[mixed[0]]]])
            raise UsageError(f"{shown(path)}: bag {name} has several labels; a bag must have one")
    in_order = bool((np.diff(codes) >= 0).all())
    return BagTable(Bags(tokens if in_order else tokens[order], starts), np.asarray(names), labels, features)
