"""Bags from a table with one instance per row, of any length each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken.app.readers.columns import (
    ColumnEncoding,
    ColumnReader,
    MixedColumns,
    check_roles,
    dropped_note,
    non_empty_names,
    without_gaps,
)
from whichtoken.attention import RaggedArray
from whichtoken.datasets.review_files import label_names
from whichtoken.errors import UsageError
from whichtoken.estimators.bags.data import as_bags
from whichtoken.reading import check_fits, read_arrays, readable, shown
from whichtoken.tables import LARGEST, TableForm, column_names, stream_table


@dataclass(frozen=True, eq=False)
class BagTable:
    """Bags in the order in which they first appear."""

    bags: RaggedArray
    ids: NDArray[Any]  # (n,)
    labels: NDArray[Any] | None  # (n,)
    features: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what was filled, encoded or left out


def read_bag_table(
    path: Path,
    bag: str = "bag",
    label: str | None = "label",
    features: Sequence[str] | None = None,
    *,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> BagTable:
    """Read a table piece by piece; gaps are filled and texts encoded by all its rows, as for a model that is trained on them.

    Parameters
    ----------
    path : .csv, .tsv, .parquet or .jsonl
    bag, label : str
        Columns of the bag's id and of its label, which is the same in all rows of a bag; None for no labels.
    features : sequence of str, optional
        Columns of the instances; all the others by default.
    drop_missing : bool
        Leave out rows with a gap.
    """
    found = read_bag_rows(path, BagRoles(bag, label, features), drop_missing=drop_missing, **form)
    encoding = ColumnEncoding.of(found.columns)
    notes = [*encoding.notes(found.columns), *dropped_note(found.dropped)]
    bags = RaggedArray(found.starts, encoding.encode(found.columns))
    return BagTable(bags, found.ids, found.labels, tuple(encoding.names), tuple(notes))


@dataclass(frozen=True)
class BagRoles:
    """Which column of a table of instances plays which part."""

    bag: str = "bag"
    label: str | None = "label"
    features: Sequence[str] | None = None  # all the others by default
    split_by: str | None = None  # what belongs together, the same in all rows of a bag

    @property
    def special(self) -> dict[str, str]:
        """The columns that are not features, by their part."""
        named = {"bag": self.bag, "label": self.label, "split": self.split_by}
        return {role: column for role, column in named.items() if column is not None}


@dataclass(frozen=True, eq=False)
class BagRows:
    """Instances with gaps and texts, bag by bag in the order in which the bags first appear."""

    columns: MixedColumns
    starts: NDArray[np.intp]  # (n + 1,)
    ids: NDArray[Any]  # (n,)
    labels: NDArray[Any] | None  # (n,)
    clusters: NDArray[Any] | None  # (n,), what belongs together
    others: dict[str, NDArray[Any]]  # columns that are neither, where they are the same in all rows of every bag
    dropped: int  # rows that were left out for their gaps
    mixed: dict[str, str] = field(default_factory=dict)  # of the other columns, a bag in which they differ

    def rows_of(self, bags: NDArray[np.intp]) -> NDArray[np.intp]:
        """Rows of some bags."""
        return np.concatenate([np.arange(self.starts[bag], self.starts[bag + 1]) for bag in bags])


def read_bag_rows(
    path: Path, roles: BagRoles, *, drop_missing: bool = False, others: bool = False, **form: Unpack[TableForm]
) -> BagRows:
    """Read a table with one instance per row; gaps and texts among the features stay what they are.

    `drop_missing` leaves out rows with a gap; `others` asks also for columns that play no part.
    """
    special, features = roles.special, roles.features
    check_roles([*special.items(), *(("feature", name) for name in features or ())])
    every = column_names(path, **form)
    if features is None:
        features = [name for name in every if name not in special.values()]
    if not features:
        raise UsageError(f"{shown(path)} has no feature columns besides {shown(', '.join(special.values()))}")
    used = [*special.values(), *features]
    rest = [name for name in every if name not in used] if others else []
    reader, dropped = ColumnReader(path, features), 0
    cells: dict[str, list[Any]] = {name: [] for name in [*special.values(), *rest]}
    for read in stream_table(path, [*used, *rest], **form):
        piece = without_gaps(read, used) if drop_missing else read
        dropped += len(read) - len(piece)
        for role, column in special.items():
            if role != "label":
                non_empty_names(path, piece[column], column, role, len(cells[roles.bag]))
        if roles.label is not None:
            cells[roles.label] += label_names(path, piece[roles.label], roles.label, len(cells[roles.bag]))
        reader.add(piece)
        for column in cells:
            cells[column] += piece[column].tolist() if column != roles.label else []
    if not cells[roles.bag]:
        raise UsageError(f"{shown(path)} has no rows{' without gaps' if dropped else ''}")
    return _sorted_rows(path, roles, reader.finish(), cells, dropped)


def _sorted_rows(
    path: Path, roles: BagRoles, columns: MixedColumns, cells: dict[str, list[Any]], dropped: int
) -> BagRows:
    import pandas as pd

    codes, names = pd.factorize(np.array(cells[roles.bag], dtype=object))
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))])
    owner = codes[order]

    def first_of_bags(values: NDArray[Any]) -> tuple[NDArray[Any], str | None]:
        """One value for each bag, and a bag in which they differ, if there is one."""
        every = values[order]
        first = every[starts[:-1]]
        differs = [not _same(one, two) for one, two in zip(every, first[owner], strict=True)]
        return first, str(names[owner[differs.index(True)]]) if any(differs) else None

    def common_of_bags(values: NDArray[Any], what: str) -> NDArray[Any]:
        first, mixed = first_of_bags(values)
        if mixed is not None:
            raise several_in_bag(path, mixed, what)
        return first

    labels = None if roles.label is None else as_int_if_integral(cells[roles.label])
    clusters = None if roles.split_by is None else np.array([str(cell) for cell in cells[roles.split_by]])
    rest = {
        name: first_of_bags(np.array([*values, None], dtype=object)[:-1])
        for name, values in cells.items()
        if name not in roles.special.values()
    }
    return BagRows(
        columns.rows(order),
        starts,
        np.asarray(names),
        None if labels is None else common_of_bags(labels, "labels"),
        None if clusters is None else common_of_bags(clusters, f"values of '{shown(str(roles.split_by))}'"),
        {name: found for name, (found, mixed) in rest.items() if mixed is None},
        dropped,
        {name: mixed for name, (_, mixed) in rest.items() if mixed is not None},
    )


def _same(one: Any, two: Any) -> bool:
    """Whether two cells are equal; gaps are."""
    return one is two or one == two or (one != one and two != two)  # only NaN differs from itself


def several_in_bag(path: Path, bag: str, what: str) -> UsageError:
    """The error for a bag in which something differs that must be the same."""
    return UsageError(f"{shown(path)}: bag {shown(bag)} has several {what}; a bag must have one")


def as_int_if_integral(labels: Iterable[str]) -> NDArray[Any]:
    """Labels that were read as text as whole numbers, if all of them are written as these are: 01 is not 1."""
    texts = list(map(str, labels))
    # more digits than an int64 holds stay text
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) for text in set(texts)):
        return np.array([int(text) for text in texts])
    return np.array(texts)


TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".json", ".gz")
KINDS = ".npz (arrays tokens and labels), .csv, .tsv, .parquet or .jsonl, also with .gz (one instance per row)"


def read_bags(
    path: Path,
    bag: str = "bag",
    label: str = "label",
    features: Sequence[str] | None = None,
    *,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> BagTable:
    """Bags of any lengths with their labels.

    Parameters
    ----------
    path : .npz, .csv, .tsv, .parquet or .jsonl
        Arrays `tokens` (bags, instances, features) and `labels` (bags,), or a table with one instance per row.
    bag, label, features, drop_missing, form
        Of a table, see `read_bag_table`.
    """
    match path.suffix.lower():
        case ".npz":
            return _read_bag_arrays(path)
        case kind if kind in TABLES:
            return read_bag_table(path, bag, label, features, drop_missing=drop_missing, **form)
        case _:
            raise UsageError(f"{shown(path)}: bags must be {KINDS}")


def _read_bag_arrays(path: Path) -> BagTable:
    arrays = read_arrays(path, ["tokens", "labels"])
    with readable(path, "bags"):
        check_fits(path, 8 * arrays["tokens"].size, "array 'tokens'")
        tokens, labels = arrays["tokens"].astype(np.float64), arrays["labels"]
    if tokens.ndim != 3 or labels.shape != tokens.shape[:1]:
        raise UsageError(
            f"{shown(path)}: tokens of shape {tokens.shape} and labels of shape {labels.shape} must be"
            " (bags, tokens, features) and (bags,)"
        )
    if not (np.abs(tokens) <= LARGEST).all():
        raise UsageError(f"{shown(path)}: tokens must be finite and below {LARGEST:g} in size")
    with readable(path, "bags"):
        bags = as_bags(tokens)
    names = tuple(f"feature {place + 1}" for place in range(bags.dim))
    return BagTable(bags, np.arange(1, len(labels) + 1), labels, names)
