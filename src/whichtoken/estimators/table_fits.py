"""From a file to a saved model with honest test metrics beside those of the obvious baseline: bags and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_sample_weight

from whichtoken.data.bag_tables import BagRoles, BagRows, read_bag_rows, whole_numbers_where_possible
from whichtoken.data.bags import Bags
from whichtoken.data.column_encoding import ColumnEncoding
from whichtoken.data.column_roles import check_roles, filled
from whichtoken.data.mixed_columns import ColumnReader, MixedColumns, dropped_note, without_gaps
from whichtoken.data.reading import read_json, shown
from whichtoken.data.review_files import label_names
from whichtoken.data.table_files import TableForm, column_names, stream_table
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.estimators.bags.classifier import BagClassifier
from whichtoken.estimators.baselines import TABLES, check_baseline, table_baseline
from whichtoken.estimators.evaluation import FitReport, Scheme, Trained, judged
from whichtoken.estimators.groups.classifier import GroupClassifier
from whichtoken.estimators.logistic_baseline import FOLDS
from whichtoken.estimators.model_card import DataCard, add_to_card
from whichtoken.estimators.model_folder import check_writable, describe_table

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]
LEAST_TO_COMPARE = 10  # bags of each class, below which maps of the instances are not compared


def fit_bags(
    path: Path,
    folder: Path,
    roles: BagRoles | None = None,
    scheme: Scheme | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    class_weight: str | None = None,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> FitReport:
    """Train a `BagClassifier` with some options on a table with one instance per row, judge it, and save it.

    The baselines see the mean of the instances of a bag.
    """
    roles, scheme = roles or BagRoles(), scheme or Scheme()
    check_writable(folder)
    check_baseline(scheme.baseline, TABLES)
    table = read_bag_rows(path, roles, drop_missing=drop_missing, **form)
    work = _BagWork(table, {**(options or {}), "random_state": scheme.seed}, class_weight)
    report, kept, _ = judged(path, work, scheme, roles.split_by)
    encoding = kept.model.encoding
    bags = Bags(encoding.encode(table.columns), table.starts)
    notes = [
        *encoding.notes(table.columns), *dropped_note(table.dropped), *_pooling_notes(kept.model.model),
        *_map_notes(kept.model.model, bags, work),
    ]  # fmt: skip
    if len(table.columns.values) == len(table.ids):
        notes.append(f"every bag has one row only; is '{roles.bag}' the column that says which rows belong together?")
    _save(folder, kept.model)
    report = replace(report, notes=(*report.notes, *notes))
    add_to_card(folder, DataCard.of(path, work.labels, [*roles.special.values(), *table.columns.names]), report)
    return report


def _pooling_notes(model: BagClassifier) -> Iterator[str]:
    if model.pooling_ != "attention":
        yield "attention did not lower the validated loss: bags are pooled by the mean"


def _map_notes(model: BagClassifier, bags: Bags, work: _BagWork) -> Iterator[str]:
    """A sentence where another map of the instances would have done better."""
    if min(np.unique(work.labels, return_counts=True)[1]) >= LEAST_TO_COMPARE:
        compared = model.compare_maps(bags, work.labels, work.clusters)
        if compared.better:
            yield f"{compared}; try --instance-map {compared.better}"


@dataclass(frozen=True, eq=False)
class _Encoded:
    """A fitted model, and how the columns of a table become its numbers."""

    model: Any
    encoding: ColumnEncoding


def _save(folder: Path, fitted: _Encoded) -> None:
    fitted.model.save(folder)
    describe_table(folder, fitted.encoding.as_json())


@dataclass(frozen=True, eq=False)
class _BagWork:
    """A table of bags as models see it."""

    table: BagRows
    options: dict[str, Any]
    class_weight: str | None

    @property
    def labels(self) -> NDArray[Any]:
        assert self.table.labels is not None
        return self.table.labels

    @property
    def clusters(self) -> NDArray[Any] | None:
        return self.table.clusters

    @property
    def least(self) -> int:
        """Every fold of a validation has bags of each class."""
        return FOLDS

    def name_of(self, kind: str) -> str:
        """The baseline in words."""
        return f"mean pooling + {TABLES[kind]}"

    def ours(self, rows: Rows) -> Trained:
        """Our model, trained on these bags."""
        encoding, bags = self._encoded(rows)
        model, y = BagClassifier(**self.options), self.labels[rows]
        weights = None if self.class_weight is None else compute_sample_weight(self.class_weight, y)
        together = None if self.clusters is None else self.clusters[rows]
        model.fit(bags.subset(rows), y, sample_weight=weights, groups=together)
        model.feature_names_in_ = np.array(encoding.names, dtype=object)
        return Trained(
            _Encoded(model, encoding), model.classes_, lambda others: model.predict_proba(bags.subset(others))
        )

    def baseline(self, kind: str, rows: Rows) -> Trained:
        """What a user would take instead, trained on the means of these bags."""
        _, bags = self._encoded(rows)
        means = np.add.reduceat(bags.tokens, bags.starts[:-1]) / np.diff(bags.starts)[:, None]
        model = table_baseline(kind, self.class_weight).fit(means[rows], self.labels[rows])
        return Trained(model, model.classes_, lambda others: np.asarray(model.predict_proba(means[others])))

    def _encoded(self, rows: Rows) -> tuple[ColumnEncoding, Bags]:
        """All bags as numbers, in the way that these ones fix."""
        encoding = ColumnEncoding.of(self.table.columns.rows(self.table.rows_of(rows)))
        return encoding, Bags(encoding.encode(self.table.columns), self.table.starts)


@dataclass(frozen=True)
class GroupRoles:
    """Which columns of a table play which part."""

    # names of columns by group, or the sign before which a column names its group
    groups: Mapping[str, Sequence[str]] | str
    label: str = "label"
    covariates: Sequence[str] = ()
    split_by: str | None = None  # what belongs together

    @property
    def special(self) -> dict[str, str]:
        """The columns that are neither in a group nor covariates, by their part."""
        return {"label": self.label} | ({} if self.split_by is None else {"split": self.split_by})


def fit_groups(
    path: Path,
    folder: Path,
    roles: GroupRoles,
    scheme: Scheme | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> FitReport:
    """Train a `GroupClassifier` with some options on a table, judge it, and save it; baselines see all columns."""
    scheme = scheme or Scheme()
    check_writable(folder)
    check_baseline(scheme.baseline, TABLES)
    mapping = _groups_of(path, roles, form)
    columns = list(dict.fromkeys([*roles.covariates, *(name for part in mapping.values() for name in part)]))
    table, labels, clusters, dropped = _read_rows(path, roles, columns, drop_missing, form)
    work = _GroupWork(
        table, labels, clusters, mapping, roles.covariates, {**(options or {}), "random_state": scheme.seed}
    )
    report, kept, _ = judged(path, work, scheme, roles.split_by)
    encoding = kept.model.encoding
    notes = [*encoding.notes(table), *dropped_note(dropped), *_selection_notes(kept.model.model)]
    _save(folder, kept.model)
    report = replace(report, notes=(*report.notes, *notes))
    add_to_card(folder, DataCard.of(path, labels, [*roles.special.values(), *columns]), report)
    return report


def _groups_of(path: Path, roles: GroupRoles, form: TableForm) -> dict[str, list[str]]:
    """Columns by group, each in one part only."""
    check_roles([*roles.special.items(), *(("covariate", name) for name in roles.covariates)])
    if isinstance(roles.groups, str):
        columns = [name for name in column_names(path, **form) if name not in roles.special.values()]
        mapping = _by_prefix(columns, roles.groups, roles.covariates)
    else:
        mapping = {name: list(part) for name, part in roles.groups.items()}
    for name, members in mapping.items():
        check_roles([*roles.special.items(), *((f"member of group '{name}'", member) for member in members)])
    return mapping


def _read_rows(
    path: Path, roles: GroupRoles, columns: Sequence[str], drop_missing: bool, form: TableForm
) -> tuple[MixedColumns, NDArray[Any], NDArray[Any] | None, int]:
    """Columns, labels, what belongs together, and how many rows were left out."""
    reader, dropped = ColumnReader(path, columns), 0
    labels: list[str] = []
    members: list[str] = []
    used = [*roles.special.values(), *columns]
    for read in stream_table(path, used, **form):
        piece = without_gaps(read, used) if drop_missing else read
        dropped += len(read) - len(piece)
        labels += label_names(path, piece[roles.label], roles.label, len(labels))
        if roles.split_by is not None:
            members += filled(path, piece[roles.split_by], roles.split_by, "group", len(members))
        reader.add(piece)
    if not labels:
        raise UsageError(f"{shown(path)} has no rows{' without gaps' if dropped else ''}")
    together = np.array(members) if members else None
    return reader.finish(), whole_numbers_where_possible(labels), together, dropped


@dataclass(frozen=True, eq=False)
class _GroupWork:
    """A table whose columns come in groups, as models see it."""

    table: MixedColumns
    labels: NDArray[Any]
    clusters: NDArray[Any] | None
    groups: Mapping[str, Sequence[str]]
    covariates: Sequence[str]
    options: dict[str, Any]

    @property
    def least(self) -> int:
        """Every fold of a validation has rows of each class."""
        return FOLDS

    def name_of(self, kind: str) -> str:
        """The baseline in words."""
        return f"{TABLES[kind]} on all columns"

    def ours(self, rows: Rows) -> Trained:
        """Our model, trained on these rows."""
        encoding, frame = self._encoded(rows)
        groups = {name: _expanded(encoding, part) for name, part in self.groups.items()}
        model = GroupClassifier(groups, covariates=_expanded(encoding, self.covariates) or None, **self.options)
        together = None if self.clusters is None else self.clusters[rows]
        model.fit(frame.iloc[rows], self.labels[rows], groups=together)
        return Trained(
            _Encoded(model, encoding), model.classes_, lambda others: model.predict_proba(frame.iloc[others])
        )

    def baseline(self, kind: str, rows: Rows) -> Trained:
        """What a user would take instead, trained on all columns of these rows."""
        _, frame = self._encoded(rows)
        model = table_baseline(kind, self.options.get("class_weight")).fit(frame.iloc[rows], self.labels[rows])
        return Trained(model, model.classes_, lambda others: np.asarray(model.predict_proba(frame.iloc[others])))

    def _encoded(self, rows: Rows) -> tuple[ColumnEncoding, pd.DataFrame]:
        """All rows as numbers, in the way that these ones fix."""
        import pandas as pd

        encoding = ColumnEncoding.of(self.table.rows(rows))
        return encoding, pd.DataFrame(encoding.encode(self.table), columns=encoding.names)


def _expanded(encoding: ColumnEncoding, columns: Sequence[str]) -> list[str]:
    return [name for column in columns for name in encoding.names_of(column)]


def _selection_notes(model: GroupClassifier) -> Iterator[str]:
    """Which groups are used, and what the validation saw."""
    kept, total = len(model.selected_groups_), len(model.group_names_)
    names = ", ".join(map(str, model.selected_groups_))
    if kept < total or model.comparison_ is None:
        yield f"selected {kept} of {total} groups: {names}"
    else:
        yield f"kept all {total} groups, as the selection found predicts less well; by attention: {names}"
    if model.comparison_ is not None:
        yield str(model.comparison_)


def read_mapping(path: Path) -> dict[str, list[str]]:
    """Groups from a JSON file: an object of lists of column names."""
    wanted = 'groups are written as {"size": ["width", "height"], "colour": ["red"]}'
    mapping: Any = read_json(path)
    if not isinstance(mapping, dict) or not mapping:
        raise UsageError(f"{shown(path)} names no groups; {wanted}")
    for name, part in mapping.items():
        if not isinstance(part, list) or not part or not all(isinstance(column, str) for column in part):
            raise UsageError(f"{shown(path)}: group '{visible(name)}' is not a list of names of columns; {wanted}")
    return dict(mapping)


def _by_prefix(columns: Sequence[str], sign: str, covariates: Sequence[str]) -> dict[str, list[str]]:
    if not any(sign in column for column in columns if sign and column not in covariates):
        raise UsageError(
            f"no column name contains the prefix character '{visible(sign)}'; columns: {visible(', '.join(columns[:8]))}"
        )
    mapping: dict[str, list[str]] = {}
    for column in columns:
        if column not in covariates:
            mapping.setdefault(column.split(sign)[0], []).append(column)
    if len(mapping) < 2:
        raise UsageError(
            f"the prefix before '{visible(sign)}' gives one group only, of {visible(', '.join(columns[:8]))};"
            " at least two are needed"
        )
    return mapping
