"""Users' tables, read piece by piece: roles of columns, labels in several spellings, and bags with one instance per row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken.attention import RaggedArray
from whichtoken.display.text import pluralize
from whichtoken.errors import ColumnError, UsageError
from whichtoken.estimators.columns import ColumnEncoding, ColumnReader, MixedColumns, is_gap
from whichtoken.reading import check_fits, read_arrays, readable, shown
from whichtoken.tables import (
    LARGEST,
    TableForm,
    check_columns,
    column_names,
    has_text,
    is_several,
    label_names,
    numbers,
    read_table,
    row_place,
    stream_table,
    table_kind,
    text_values,
)

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.bags.files import BagFiles

Array = NDArray[np.float64]


def without_gaps(piece: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows that have all of these columns; they keep their numbers."""
    filled = np.ones(len(piece), dtype=bool)
    for name in columns:
        filled &= ~np.array([is_gap(cell) for cell in piece[name]], dtype=bool)
    return piece[filled]


def dropped_note(rows: int) -> list[str]:
    """A sentence about rows that were left out, if any were."""
    return [f"{pluralize(rows, 'row')} with a gap {'was' if rows == 1 else 'were'} left out"] if rows else []


def merge_spellings(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Labels that differ in case, inner spaces or 1 and 1.0 only as one, as most are spelled; and sentences about them."""
    spellings: dict[str, Counter[str]] = {}
    for label, count in Counter(labels).items():
        # spreadsheets write whole numbers in both ways; 01 and 1 may be two codes
        alike = re.sub(r"^(-?\d+)\.0+$", r"\1", " ".join(label.split()).casefold())
        spellings.setdefault(alike, Counter())[label] = count
    merged = {label: found.most_common(1)[0][0] for found in spellings.values() for label in found}
    notes = [
        f"labels {', '.join(repr(shown(one)) for one in sorted(found))} differ only in case, spaces or .0 and are taken as one"
        for found in spellings.values()
        if len(found) > 1
    ]
    return [merged[label] for label in labels], notes


def check_roles(roles: Iterable[tuple[str, str]]) -> None:
    """Refuse a column that is asked for in two roles, or twice in one; pairs of a role and a column."""
    taken: dict[str, str] = {}
    for role, column in roles:
        if not column.strip():
            raise ColumnError(f"the {role} column '{column}' has no name; name a column of the table", column)
        if column in taken:
            parts = f"{role} twice" if taken[column] == role else f"{taken[column]} and {role}"
            raise ColumnError(f"column '{shown(column)}' is named as {parts}; each needs a column of its own", column)
        taken[column] = role


def non_empty_names(path: Path, values: Iterable[Any], column: str, role: str, first: int = 0) -> list[str]:
    """Names of bags or groups as strings; a cell without one is refused. `first` rows came before."""
    names = []
    for i, value in enumerate(values):
        name = "" if value is None else str(value).strip()
        if name in ("", "nan", "<NA>", "NaT"):
            place = row_place(path, values, i, first)
            raise ColumnError(f"{place} has no {role} in column '{shown(column)}'; every row needs one", column)
        names.append(name)
    return names


@dataclass(frozen=True)
class Target:
    """What is learned of each text or bag: its class, a number, or which of several labels it has, one column for each."""

    columns: tuple[str, ...] = ("label",)
    number: bool = False

    @classmethod
    def of(cls, label: str | Target) -> Target:
        """From the name of a column of classes."""
        return label if isinstance(label, Target) else cls((label,))

    @classmethod
    def in_table(cls, path: Path, columns: str, form: TableForm) -> Target:
        """From the name of a column of classes, or from those of several labels with commas between them."""
        several = "," in columns and columns not in column_names(path, **form)
        return cls(_listed(columns) if several else (columns,))

    def named(self, columns: str) -> Target:
        """The same in other columns, with commas between several."""
        names = (columns,) if len(self.columns) == 1 else _listed(columns)
        if set(names) == set(self.columns):
            return self  # the order of the fit, whatever the order here
        if len(self.columns) != len(names):
            known = f"the model has {len(self.columns)} labels, {shown(', '.join(self.columns))}"
            raise UsageError(f"{known}, and '{shown(columns)}' names {len(names)}; name the column of each")
        return replace(self, columns=names)

    @property
    def kind(self) -> Literal["class", "number", "labels"]:
        """Which of the three it is."""
        return "number" if self.number else "class" if len(self.columns) == 1 else "labels"

    @property
    def roles(self) -> dict[str, str]:
        """The columns by their part."""
        names = ["label"] if len(self.columns) == 1 else [f"label {k}" for k in range(1, len(self.columns) + 1)]
        return dict(zip(names, self.columns, strict=True))

    def read(self, path: Path, piece: pd.DataFrame, first: int) -> list[Any]:
        """What the rows of a piece say; a cell that says nothing, or something else, is refused with its row."""
        if self.kind == "class":
            return label_names(path, piece[self.columns[0]], self.columns[0], first)
        what = "numbers to predict" if self.number else "columns of several labels"
        values = numbers(path, piece, self.columns, what)
        wrong = np.argwhere((values != 0) & (values != 1))
        if len(wrong) and not self.number:
            (row, place), source = wrong[0], piece[self.columns[wrong[0][1]]]
            cell = f"{values[row, place]:g} in column '{shown(self.columns[place])}'"
            raise ColumnError(
                f"{row_place(path, source, row, first)} holds {cell}; {what} hold 0 and 1", self.columns[place]
            )
        return list(values.tolist())

    def array(self, cells: list[Any]) -> NDArray[Any]:
        """All that was read: classes or numbers (n,), or 0 and 1 (n, k)."""
        if self.kind == "class":
            return as_int_if_integral(cells)
        values = np.array(cells).reshape(-1, len(self.columns))
        return values[:, 0] if self.number else values.astype(np.int64)

    def check(self, path: Path, values: NDArray[Any]) -> None:
        """Refuse numbers, or marks of a label, that are all the same."""
        for name, column in zip(self.columns, np.atleast_2d(values.T), strict=True):
            if (column == column[0]).all():
                raise ColumnError(
                    f"{shown(path)}: '{shown(name)}' is {column[0]:g} in every row; nothing can be learned", name
                )

    def given(self, values: NDArray[Any]) -> Any:
        """The values as an estimator takes them."""
        import pandas as pd

        return pd.DataFrame(values, columns=list(self.columns)) if self.kind == "labels" else values


def _listed(columns: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in columns.split(","))


@dataclass(frozen=True, eq=False)
class BagTable:
    """Bags in the order in which they first appear."""

    bags: RaggedArray
    ids: NDArray[Any]  # (n,)
    labels: NDArray[Any] | None  # (n,)
    features: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what was filled, encoded or left out


@dataclass(frozen=True)
class BagRoles:
    """Which column of a table of instances plays which part."""

    bag: str = "bag"
    label: str | Target | None = "label"
    features: Sequence[str] | None = None  # all the others by default
    split_by: str | None = None  # what belongs together, the same in all rows of a bag
    files: str | None = None  # the file of each bag, where a row is a bag

    @property
    def special(self) -> dict[str, str]:
        """The columns that are not features, by their part."""
        named = {
            "bag": self.bag,
            **(self.target.roles if self.target else {}),
            "split": self.split_by,
            "files": self.files,
        }
        return {role: column for role, column in named.items() if column is not None}

    @property
    def target(self) -> Target | None:
        """What is learned."""
        return None if self.label is None else Target.of(self.label)


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
    special, features, target = roles.special, roles.features, roles.target
    check_roles([*special.items(), *(("feature", name) for name in features or ())])
    every = column_names(path, **form)
    if features is None:
        features = [name for name in every if name not in special.values()]
    if not features:
        raise UsageError(f"{shown(path)} has no feature columns besides {shown(', '.join(special.values()))}")
    used = [*special.values(), *features]
    rest = [name for name in every if name not in used] if others else []
    reader, dropped = ColumnReader(path, features), 0
    learned: list[Any] = []
    asked = () if target is None else target.columns
    cells: dict[str, list[Any]] = {name: [] for name in [*special.values(), *rest] if name not in asked}
    for read in stream_table(path, [*used, *rest], **form):
        piece = without_gaps(read, used) if drop_missing else read
        dropped += len(read) - len(piece)
        for role, column in special.items():
            if column not in asked:
                non_empty_names(path, piece[column], column, role, len(cells[roles.bag]))
        if target is not None:
            learned += target.read(path, piece, len(cells[roles.bag]))
        reader.add(piece)
        for column in cells:
            cells[column] += piece[column].tolist()
    if not cells[roles.bag]:
        raise UsageError(f"{shown(path)} has no rows{' without gaps' if dropped else ''}")
    return _sorted_rows(path, roles, reader.finish(), cells, learned, dropped)


def _sorted_rows(
    path: Path, roles: BagRoles, columns: MixedColumns, cells: dict[str, list[Any]], learned: list[Any], dropped: int
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
        # gaps are equal; only NaN differs from itself
        pairs = zip(every, first[owner], strict=True)
        differs = [not (one is two or one == two or (one != one and two != two)) for one, two in pairs]
        return first, str(names[owner[differs.index(True)]]) if any(differs) else None

    def common_of_bags(values: NDArray[Any], what: str) -> NDArray[Any]:
        first, mixed = first_of_bags(values)
        if mixed is not None:
            raise several_in_bag(path, mixed, what)
        return first

    labels = None
    if roles.target is not None:
        what, values = "numbers" if roles.target.number else "labels", roles.target.array(learned)
        of_bags = [common_of_bags(column, what) for column in np.atleast_2d(values.T)]
        labels = of_bags[0] if values.ndim == 1 else np.stack(of_bags, axis=1)
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
        labels,
        None if clusters is None else common_of_bags(clusters, f"values of '{shown(str(roles.split_by))}'"),
        {name: found for name, (found, mixed) in rest.items() if mixed is None},
        dropped,
        {name: mixed for name, (_, mixed) in rest.items() if mixed is not None},
    )


@dataclass(frozen=True, eq=False)
class BagFileTable:
    """A table with one bag per row, whose instances lie in a file of its own."""

    files: BagFiles
    table: pd.DataFrame
    ids: list[str]
    labels: NDArray[Any] | None  # (n,)
    clusters: NDArray[Any] | None  # (n,)


def read_bag_files(path: Path, roles: BagRoles, **form: Unpack[TableForm]) -> BagFileTable:
    """Read a table that names the file of each bag, relative to the folder of the table; the files are read when needed."""
    from whichtoken.estimators.bags.files import BagFiles

    assert roles.files is not None
    check_roles(roles.special.items())
    table = read_table(path, None, **form)
    check_columns(path, list(roles.special.values()), list(table.columns))
    ids = non_empty_names(path, table[roles.bag], roles.bag, "bag")
    if doubled := [name for name, count in Counter(ids).items() if count > 1]:
        raise ColumnError(
            f"{shown(path)}: bag {shown(doubled[0])} has several rows; with files, a row is a bag", roles.bag
        )
    names = non_empty_names(path, table[roles.files], roles.files, "file")
    folder = path if path.is_dir() else path.parent
    target = roles.target
    labels = None if target is None else target.array(target.read(path, table, 0))
    clusters = None
    if roles.split_by is not None:
        clusters = np.array(non_empty_names(path, table[roles.split_by], roles.split_by, "group"))
    return BagFileTable(BagFiles([folder / name for name in names]), table, ids, labels, clusters)


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


KINDS = ".npz (arrays tokens and labels), .csv, .tsv, .parquet or .jsonl, also with .gz or .zst (one instance per row)"


def read_bags(
    path: Path,
    bag: str = "bag",
    label: str | None = "label",
    features: Sequence[str] | None = None,
    *,
    drop_missing: bool = False,
    files: str | None = None,
    **form: Unpack[TableForm],
) -> BagTable:
    """Bags of any lengths with their labels.

    A table is read piece by piece; gaps are filled and texts encoded by all its rows, as for a model that is trained on them.

    Parameters
    ----------
    path : .npz, .csv, .tsv, .parquet or .jsonl
        Arrays `tokens` (bags, instances, features) and `labels` (bags,), or a table with one instance per row.
    bag, label : str
        Columns of the bag's id and of its label, which is the same in all rows of a bag; None for no labels.
    features : sequence of str, optional
        Columns of the instances; all the others by default.
    drop_missing : bool
        Leave out rows with a gap.
    files : str, optional
        Column with the file of each bag, where a row is a bag.
    """
    kind = path.suffix.lower()
    if kind == ".npz":
        return _read_bag_arrays(path)
    if files is not None:
        found_files = read_bag_files(path, BagRoles(bag, label, files=files), **form)
        loaded = found_files.files.load()
        names = tuple(f"feature {place + 1}" for place in range(loaded.dim))
        return BagTable(loaded, np.array(found_files.ids), found_files.labels, names)
    if not is_several(path) and not table_kind(path):
        raise UsageError(f"{shown(path)}: bags must be {KINDS}")
    found = read_bag_rows(path, BagRoles(bag, label, features), drop_missing=drop_missing, **form)
    encoding = ColumnEncoding.of(found.columns)
    notes = [*encoding.notes(found.columns), *dropped_note(found.dropped)]
    bags = RaggedArray(found.starts, encoding.encode(found.columns))
    return BagTable(bags, found.ids, found.labels, tuple(encoding.names), tuple(notes))


def read_labeled_texts(
    path: Path, text: str, label: str, *, drop_missing: bool = False, **form: Unpack[TableForm]
) -> tuple[list[str], NDArray[Any], list[str]]:
    """Texts of a table, their labels, and sentences on what was left out or merged."""
    check_roles([("text", text), ("label", label)])
    table = read_table(path, [text, label], **form)
    kept = table[[has_text(cell) for cell in table[text]]]
    used = without_gaps(kept, [label]) if drop_missing else kept
    names, notes = merge_spellings(label_names(path, used[label], label, 0))
    return (
        text_values(path, used[text], text, 0),
        as_int_if_integral(names),
        [*dropped_note(len(table) - len(used)), *notes],
    )


def _read_bag_arrays(path: Path) -> BagTable:
    from whichtoken.estimators.bags.data import as_bags

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
