"""From a file to a saved model with honest test metrics beside those of the obvious baseline: bags and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from whichtoken.data.bag_tables import BagTable, numbers, read_bag_table, whole_numbers_where_possible
from whichtoken.data.column_roles import check_roles
from whichtoken.data.reading import read_json, shown
from whichtoken.data.review_files import label_names
from whichtoken.data.table_files import column_names, read_table
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.estimators.bags.attention import no_scaling, pooled_features
from whichtoken.estimators.bags.classifier import BagClassifier
from whichtoken.estimators.evaluation import FitReport, check_split, measured, predictions, split_rows
from whichtoken.estimators.groups.classifier import GroupClassifier
from whichtoken.estimators.logistic_baseline import logistic_baseline
from whichtoken.estimators.model_folder import check_writable

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.bags.explanation import BagExplanation
    from whichtoken.estimators.groups.explanation import RowExplanation


def fit_bags(
    path: Path,
    folder: Path,
    *,
    bag: str = "bag",
    label: str = "label",
    features: Sequence[str] | None = None,
    queries: int = 1,
    test_share: float = 0.25,
    seed: int = 0,
    separator: str | None = None,
) -> FitReport:
    """Train a `BagClassifier` on a table with one instance per row and save it; the baseline is mean pooling."""
    check_writable(folder)
    check_split(test_share, seed)
    table = read_bag_table(path, bag, label, features, separator)
    assert table.labels is not None
    inside, outside = split_rows(path, table.labels, test_share, seed)
    training, test = table.bags.subset(inside), table.bags.subset(outside)
    model = BagClassifier(n_queries=queries, random_state=seed)
    ours = measured("attention", model, (training, table.labels[inside]), (test, table.labels[outside]))
    scaling = no_scaling(training.dim)
    means, held = (pooled_features(part, np.zeros(part.dim), scaling) for part in (training, test))
    baseline = measured(
        "mean pooling + logistic regression", _linear(), (means, table.labels[inside]), (held, table.labels[outside])
    )
    notes = []
    if model.pooling_ != "attention":
        notes.append("attention did not lower the validated loss: bags are pooled by the mean")
    if len(table.bags.tokens) == len(table.ids):
        notes.append(f"every bag has one row only; is '{bag}' the column that says which rows belong together?")
    model.feature_names_in_ = np.array(table.features, dtype=object)
    model.save(folder)
    return FitReport(len(inside), len(outside), ours, baseline, tuple(notes))


def fit_groups(
    path: Path,
    folder: Path,
    *,
    groups: Mapping[str, Sequence[str]] | str,
    label: str = "label",
    covariates: Sequence[str] = (),
    test_share: float = 0.25,
    seed: int = 0,
    separator: str | None = None,
) -> FitReport:
    """Train a `GroupClassifier` on a table and save it; the baseline is logistic regression on all columns.

    `groups` maps names to columns, or is a sign: columns are grouped by the part of their name before it.
    """
    check_writable(folder)
    check_split(test_share, seed)
    check_roles([("label", label), *(("covariate", name) for name in covariates)])
    columns = [name for name in column_names(path, separator=separator) if name != label]
    mapping = _by_prefix(columns, groups, covariates) if isinstance(groups, str) else dict(groups)
    for name, members in mapping.items():
        check_roles([("label", label), *((f"member of group '{name}'", member) for member in members)])
    wanted = list(dict.fromkeys([*covariates, *(name for part in mapping.values() for name in part)]))
    table = read_table(path, [label, *wanted], separator=separator)
    X = _frame(path, table, wanted)
    y = whole_numbers_where_possible(label_names(path, table[label], label, 0))
    inside, outside = split_rows(path, y, test_share, seed)
    model = GroupClassifier(mapping, covariates=list(covariates) or None, random_state=seed)
    training, test = (X.iloc[inside], y[inside]), (X.iloc[outside], y[outside])
    ours = measured("group selection", model, training, test)
    baseline = measured("logistic regression on all columns", _linear(), training, test)
    model.save(folder)
    return FitReport(len(inside), len(outside), ours, baseline, tuple(_selection_notes(model)))


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


def predict_bags(model: BagClassifier, path: Path, *, bag: str = "bag", separator: str | None = None) -> pd.DataFrame:
    """Label and probabilities of each bag of a table."""
    table = _bags_for(model, path, bag, separator)
    return predictions(model, table.bags, {"bag": table.ids})


def explain_bags(
    model: BagClassifier, path: Path, *, bag: str = "bag", separator: str | None = None
) -> list[BagExplanation]:
    """Why each bag of a table gets its label."""
    table = _bags_for(model, path, bag, separator)
    return model.explain(table.bags, table.ids.tolist())


def _bags_for(model: BagClassifier, path: Path, bag: str, separator: str | None) -> BagTable:
    features = getattr(model, "feature_names_in_", None)
    return read_bag_table(path, bag, None, None if features is None else list(features), separator)


def predict_groups(model: GroupClassifier, path: Path, *, separator: str | None = None) -> pd.DataFrame:
    """Label and probabilities of each row of a table."""
    X = _group_table(model, path, separator)
    return predictions(model, X, {"row": np.arange(1, len(X) + 1)})


def explain_groups(model: GroupClassifier, path: Path, *, separator: str | None = None) -> list[RowExplanation]:
    """Why each row of a table gets its label."""
    return model.explain(_group_table(model, path, separator))


def _group_table(model: GroupClassifier, path: Path, separator: str | None) -> pd.DataFrame:
    if not hasattr(model, "feature_names_in_"):
        raise UsageError(
            "the model was trained without names of columns and cannot find them in a table; fit a DataFrame"
        )
    columns = list(model.feature_names_in_)
    return _frame(path, read_table(path, columns, separator=separator), columns)


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


def _frame(path: Path, table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(numbers(path, table, columns), columns=columns)


def _linear() -> Any:
    return make_pipeline(StandardScaler(), logistic_baseline())
