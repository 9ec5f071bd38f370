"""Apply a saved model to a user's table of texts, bags or rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken.app.readers import BagRoles, Target, as_int_if_integral, read_bag_files, read_bag_rows, several_in_bag
from whichtoken.attention import RaggedArray
from whichtoken.errors import ColumnError, UsageError
from whichtoken.estimators.columns import ColumnEncoding, ColumnReader, MixedColumns
from whichtoken.estimators.common import answers_of
from whichtoken.estimators.model_folder import OpenedFolder, stored_fields
from whichtoken.reading import shown
from whichtoken.tables import TableForm, check_columns, has_label, has_text, label_names, read_table, text_values

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.app.evaluation import Trained
    from whichtoken.display.decision import Decision
    from whichtoken.estimators import Explanation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Applied:
    """A model and the table that it is applied to."""

    path: Path
    table: pd.DataFrame  # what the file says of each row, or of each bag
    classes: NDArray[Any]  # or the names of several labels
    probabilities: Callable[[], Array]  # (n, classes); of a number, that number, (n, 1)
    explain: Callable[[], Sequence[Explanation | None]]  # None for a row without a text
    mixed: Mapping[str, str] = field(default_factory=dict)  # columns that differ inside a bag, and the bag
    empty: NDArray[np.bool_] | None = None  # rows without a text, which get no label, (n,)
    weights: Array | float = 1.0  # of the probabilities, (classes,): the label is that of the largest product
    target: Target = field(default_factory=Target)  # what was learned, in the columns that the fit of a table named

    def labeled_rows(self, *columns: str, drop_missing: bool = False) -> NDArray[np.intp]:
        """Rows with a label: all of them, unless those without one are to be left out."""
        filled = np.ones(len(self.table), bool) if self.empty is None else ~self.empty
        for column in columns:
            if column in self.mixed:
                raise several_in_bag(self.path, self.mixed[column], "labels")
            check_columns(self.path, [column], list(self.table.columns))
            filled &= np.array([not drop_missing or has_label(value) for value in self.table[column]], bool)
            if drop_missing and not filled.any():
                raise ColumnError(f"{shown(self.path)}: no row has a label in column '{shown(column)}'", column)
        return np.flatnonzero(filled)

    def labels(self, column: str, rows: NDArray[np.intp]) -> NDArray[Any]:
        """The true labels of some rows, of the type that the model knows."""
        return as_classes(label_names(self.path, self.table[column].iloc[rows], column, 0), self.classes)

    def labeled(self, columns: str | None = None, drop_missing: bool = False) -> LabeledRows:
        """The labeled rows, for an evaluation."""
        target = self.target if columns is None else self.target.named(columns)
        rows = self.labeled_rows(*target.columns, drop_missing=drop_missing)
        lacking = self.empty is not None and bool(self.empty.any())
        if target.kind == "class":
            labels = self.labels(target.columns[0], rows)
        else:
            labels = target.array(target.read(self.path, self.table.iloc[rows], 0))
        left = len(self.table) - len(rows)
        return LabeledRows(self.probabilities()[rows], labels, left, lacking, self.classes, self.weights, target)

    def predicted(self, abstain_below: float | None = None) -> pd.DataFrame:
        """The table with what the model says of it."""
        from whichtoken.app.evaluation import add_answers, add_predictions

        found = self.probabilities()
        if self.target.kind == "class":
            return add_predictions(self.table, self.classes, found, abstain_below, self.weights)
        return add_answers(self.table, self.target, found, abstain_below)


@dataclass(frozen=True, eq=False)
class LabeledRows:
    """Labeled rows of a table with their probabilities."""

    probabilities: Array  # (n, classes)
    labels: NDArray[Any]  # (n,)
    left: int  # rows that were left out
    lacking: bool  # some of them for want of a text
    classes: NDArray[Any]
    weights: Array | float
    target: Target

    def trained(self) -> Trained:
        """The classifier as an evaluation takes it."""
        from whichtoken.app.evaluation import Trained

        weights = np.broadcast_to(self.weights, self.probabilities.shape[1:])
        return Trained(None, self.classes, lambda rows: np.asarray(self.probabilities[rows]), weights)


def as_classes(names: Sequence[str], classes: NDArray[Any]) -> NDArray[Any]:
    """Labels that were read as text as the classes of a model: 1, 1.0 and 1e0 are the same; if one is none, as they are."""
    known = {str(name): name for name in classes.tolist()}
    numbers = {_number(text): name for text, name in known.items()} | {None: None}
    # those that differ in case or spaces from one class only
    folded = {_fold_case(name): name for name in known}
    folded = folded if len(folded) == len(known) else {}
    names = [name if name in known else folded.get(_fold_case(name), name) for name in names]
    found = [known[name] if name in known else numbers.get(_number(name)) for name in names]
    if any(label is None for label in found):
        return np.array(names) if classes.dtype.kind in "UO" else as_int_if_integral(names)
    return np.array(found, dtype=classes.dtype)


def _fold_case(text: str) -> str:
    return " ".join(text.split()).casefold()


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def apply_to_table(
    opened: OpenedFolder, model: Any, path: Path, column: str | None = None, **form: Unpack[TableForm]
) -> Applied:
    """A loaded model on a table; `column` names the texts, or the bags, if not those of the fit."""
    target = target_of(opened, model)
    roles = remembered_roles(opened)
    match opened.kind.partition("-")[0]:
        case "text":
            found = _apply_to_texts(opened, model, path, column or roles.get("text", "text"), form)
        case "bag" if "files" in roles:
            found = _apply_to_bag_files(model, path, column or roles.get("bag", "bag"), roles["files"], form)
        case "bag":
            found = _apply_to_bags(opened, model, path, column or roles.get("bag", "bag"), form)
        case _:
            found = _apply_to_rows(opened, model, path, form)
    return replace(found, target=target)


def target_of(opened: OpenedFolder, model: Any) -> Target:
    """What a model learned: of a table, in the columns that its fit named; a model of another kind is refused."""
    if not (opened.kind.endswith("-classifier") or opened.kind in ("text-regressor", "bag-regressor")):
        raise UsageError(
            f"{shown(opened.folder)} holds a model of kind '{shown(opened.kind)}', which is used from Python only"
        )
    if getattr(model, "several_labels_", False):
        return Target(tuple(map(str, model.classes_)))
    return Target((remembered_roles(opened).get("label", "label"),), opened.kind.endswith("-regressor"))


def remembered_roles(opened: OpenedFolder) -> dict[str, str]:
    """Columns by their part, as the fit of a table named them."""
    roles = opened.table.get("roles", {}) if isinstance(opened.table, dict) else {}
    if not isinstance(roles, dict) or not all(isinstance(name, str) for name in roles.values()):
        raise UsageError(f"{shown(opened.folder)}: 'roles' does not name columns by their part")
    return roles


def explainer_settings(opened: OpenedFolder) -> dict[str, Any]:
    """What `save_explainer` has to know of the table that a model of rows or bags was fitted on."""
    if opened.kind == "text-classifier":
        return {}
    bag = {"bag": remembered_roles(opened).get("bag", "bag")} if opened.kind == "bag-classifier" else {}
    return {"table": opened.table, **bag}


def check_classifier(opened: OpenedFolder, model: Any) -> None:
    """Refuse a model that does not give one class to each row."""
    target = target_of(opened, model)
    if target.kind != "class":
        what = "predicts a number" if target.number else "gives several labels"
        raise UsageError(f"{shown(opened.folder)} {what}; a page shows models with one class for each text, bag or row")


def _apply_to_texts(opened: OpenedFolder, model: Any, path: Path, column: str, form: TableForm) -> Applied:
    check_reads_texts(opened, model)
    table = read_table(path, None, **form)
    check_columns(path, [column], list(table.columns))
    empty = np.array([not has_text(cell) for cell in table[column]], bool)
    texts = text_values(path, table[column].mask(empty, ""), column, 0)
    if empty.any():
        few = "row has no text and gets" if empty.sum() == 1 else "rows have no text and get"
        warnings.warn(f"{empty.sum()} {few} no label", stacklevel=2)
    data: Any = np.array(texts, dtype=object)
    names = model_names(model)
    if model.columns is not None:
        from whichtoken.estimators.text.columns import TextTable

        check_columns(path, model.columns, list(table.columns))
        reader = ColumnReader(path, model.columns)
        reader.add(table)
        data = TextTable(texts, reader.finish(learned=True))

    def probabilities() -> Array:
        found = np.full((len(texts), max(1, len(names))), np.nan)
        if not empty.all():
            found[~empty] = answers_of(model, data.rows(~empty) if model.columns else data[~empty].tolist())
        return found

    def explain() -> Sequence[Explanation | None]:
        if empty.all():
            raise UsageError(f"{shown(path)}: no row has a text in column '{shown(column)}'")
        found = explain_all(model, data.rows(~empty) if model.columns else data[~empty].tolist())
        each, rest = len(found) // int((~empty).sum()), iter(found)
        return [None if lacks_text else next(rest) for lacks_text in np.repeat(empty, each)]

    weights = getattr(model, "decision_weights_", 1.0) if names.size else 1.0
    return Applied(path, table, names, probabilities, explain, {}, empty, weights)


def model_names(model: Any) -> NDArray[Any]:
    """Classes or labels of a model; none of a regression."""
    return np.asarray(getattr(model, "classes_", np.empty(0)))


@dataclass(frozen=True, eq=False)
class LabelExplanation:
    """Why one of several labels is given or not."""

    label: str
    why: Any
    row: int

    def view(self, number: int = 1) -> Decision:
        """As people read it."""
        decision: Decision = self.why.view(self.row)
        return replace(decision, name=f"{decision.name}, {self.label}")

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return {"of_label": self.label, **self.why.as_json()}


def explain_all(model: Any, data: Any, *names: Any) -> Sequence[Any]:
    """Why each text, bag or row gets what it gets; one after the other for each of several labels."""
    if not getattr(model, "several_labels_", False):
        return model.explain(data, *names)  # type: ignore[no-any-return]
    found = []
    for label in model.classes_.tolist():
        one = model.for_label(label)
        one.classes_ = np.array([f"not {label}", str(label)])
        found.append([LabelExplanation(str(label), why, row) for row, why in enumerate(one.explain(data, *names), 1)])
    return [why for row in zip(*found, strict=True) for why in row]


def check_reads_texts(opened: OpenedFolder, model: Any) -> None:
    """Refuse a text model that was fitted on counts."""
    if not hasattr(getattr(model, "scorer_", model), "vocabulary_"):
        raise UsageError(f"{shown(opened.folder)} was fitted on counts and reads no texts; use it from Python")


def _apply_to_bags(opened: OpenedFolder, model: Any, path: Path, column: str, form: TableForm) -> Applied:
    import pandas as pd

    encoding = _encoding(opened, getattr(getattr(model, "scorer_", model), "feature_names_in_", None))
    roles = BagRoles(column, None, None if encoding is None else encoding.columns)
    found = read_bag_rows(path, roles, others=True, **form)
    encoding = encoding or ColumnEncoding.of(found.columns)
    _check_gaps(opened, path, found.columns)
    bags = RaggedArray(found.starts, encoding.encode(found.columns))
    table = pd.DataFrame({column: found.ids, **found.others})
    ids = found.ids.tolist()
    return Applied(
        path,
        table,
        model_names(model),
        lambda: answers_of(model, bags),
        lambda: explain_all(model, bags, ids),
        found.mixed,
    )


def _apply_to_bag_files(model: Any, path: Path, column: str, files: str, form: TableForm) -> Applied:
    found = read_bag_files(path, BagRoles(column, None, files=files), **form)
    return Applied(
        path, found.table, model_names(model), lambda: answers_of(model, found.files),
        lambda: explain_all(model, found.files, found.ids),
    )  # fmt: skip


def _apply_to_rows(opened: OpenedFolder, model: Any, path: Path, form: TableForm) -> Applied:
    import pandas as pd

    if not hasattr(model, "feature_names_in_"):
        raise UsageError(
            "the model was trained without column names and cannot find its columns in a table; fit a DataFrame"
        )
    needed = set(model.get_feature_names_out())
    encoding = _encoding(opened, model.feature_names_in_)
    assert encoding is not None
    encoding = encoding.part([name for name in encoding.columns if needed & set(encoding.names_of(name))])
    table = read_table(path, None, **form)
    check_columns(path, encoding.columns, list(table.columns))
    reader = ColumnReader(path, encoding.columns)
    reader.add(table)
    found = reader.finish()
    _check_gaps(opened, path, found)
    frame = pd.DataFrame(encoding.encode(found), columns=encoding.names)
    return Applied(path, table, model.classes_, lambda: model.predict_proba(frame), lambda: model.explain(frame))


def _encoding(opened: OpenedFolder, names: Any) -> ColumnEncoding | None:
    """How columns become numbers: as the fit of a table said, or columns of numbers as they are."""
    if opened.table is not None:
        with stored_fields(opened):
            return ColumnEncoding.from_json(opened.table)
    return None if names is None else ColumnEncoding(tuple(names), dict.fromkeys(names, 0.0), {})


def _check_gaps(opened: OpenedFolder, path: Path, table: MixedColumns) -> None:
    """Refuse gaps for a model that was not fitted on a table, where it would have learned what to fill them with."""
    if opened.table is None and table.gaps:
        row, place = np.argwhere(np.isnan(table.values))[0]
        raise UsageError(
            f"{shown(path)}: column '{shown(table.names[place])}' has a gap in row {row + 1}, and the model knows no number"
            " for it; fit it with whichtoken fit, or fill the gap"
        )
