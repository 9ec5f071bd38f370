"""What `whichtoken fit` does: read a table, fit a model, evaluate it beside a baseline on held-out rows, and save it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken.app.evaluation import (
    TABLES,
    TEXTS,
    FitReport,
    Scheme,
    TooFewRowsError,
    Trained,
    Workload,
    check_baseline,
    evaluate_with_baselines,
    table_baseline,
    text_baseline,
    with_baseline,
)
from whichtoken.app.readers import (
    BagRoles,
    BagRows,
    Target,
    check_roles,
    dropped_note,
    merge_spellings,
    non_empty_names,
    read_bag_files,
    read_bag_rows,
    without_gaps,
)
from whichtoken.attention import RaggedArray
from whichtoken.datasets.duplicates import duplicate_groups, text_signatures
from whichtoken.datasets.word_split import has_markup, split_words
from whichtoken.display.shown import Shown
from whichtoken.display.terminal import each_warning_once
from whichtoken.display.text import pluralize, visible
from whichtoken.errors import UsageError
from whichtoken.estimators.columns import ColumnEncoding, ColumnReader, MixedColumns
from whichtoken.estimators.common import answers_of
from whichtoken.estimators.model_folder import DataCard, add_to_card, check_writable, describe_table
from whichtoken.estimators.text.classifier import TextClassifier
from whichtoken.estimators.text.model import count_with_spelled, flipping_sets
from whichtoken.reading import read_json, shown
from whichtoken.tables import TableForm, column_names, has_text, stream_table, text_values

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.bags.files import BagFiles
    from whichtoken.estimators.groups.classifier import GroupClassifier

Rows = NDArray[np.intp]


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
    """Train a `BagClassifier` with some options on a table with one instance per row, evaluate it, and save it.

    Or a `BagRegressor`, if the label is a number. The baselines see the mean of the instances of a bag.
    """
    roles = roles or BagRoles()
    target = roles.target or Target()
    check_writable(folder)
    scheme = with_baseline(scheme or Scheme(), TABLES[target.kind])
    options = {
        **(options or {}),
        **({} if target.number else {"class_weight": class_weight}),
        "random_state": scheme.seed,
    }
    if roles.files is not None:
        return _fit_bag_files(path, folder, roles, target, scheme, options, form)
    table = read_bag_rows(path, roles, drop_missing=drop_missing, **form)
    work = _BagWork(table, options, target)
    report, kept, _ = evaluate_with_baselines(path, work, scheme, roles.split_by)
    encoding = kept.model.encoding
    notes = [*encoding.notes(table.columns), *dropped_note(table.dropped), *_bag_notes(kept.model.model)]
    if len(table.columns.values) == len(table.ids):
        notes.append(f"every bag has one row only; is '{roles.bag}' the column that says which rows belong together?")
    kept.model.save(folder, roles.special)
    return _write_card(folder, path, work, [*roles.special.values(), *table.columns.names], report, notes)


def _fit_bag_files(
    path: Path, folder: Path, roles: BagRoles, target: Target, scheme: Scheme, options: dict[str, Any], form: TableForm
) -> FitReport:
    found = read_bag_files(path, roles, **form)
    assert found.labels is not None
    # one pass over the files, which also meets whatever is wrong with one of them before any fit
    means = np.array([bag.mean(axis=0, dtype=np.float64) for bag in found.files])
    work = _BagFileWork(found.labels, found.clusters, found.files, means, options, target)
    report, kept, _ = evaluate_with_baselines(path, work, scheme, roles.split_by)
    kept.model.save(folder)
    describe_table(folder, {"roles": roles.special})
    notes = _bag_notes(kept.model)
    return _write_card(folder, path, work, list(roles.special.values()), report, list(notes))


@dataclass(frozen=True, eq=False)
class _BagFileWork(Workload):
    """Bags in files, as models see them."""

    labels: NDArray[Any]
    clusters: NDArray[Any] | None
    files: BagFiles
    means: NDArray[np.float64]  # (n, features)
    options: dict[str, Any]
    target: Target

    def name_of(self, kind: str) -> str:
        return f"mean pooling + {TABLES[self.target.kind][kind]}"

    def ours(self, rows: Rows) -> Trained:
        return _bag_model(self, self.files, rows)

    def baseline(self, kind: str, rows: Rows) -> Trained:
        return _means_baseline(kind, self, self.means, rows)


def _bag_model(work: _BagFileWork | _BagWork, bags: Any, rows: Rows) -> Trained:
    from whichtoken.estimators.bags.classifier import BagClassifier
    from whichtoken.estimators.bags.regressor import BagRegressor

    model: Any = BagRegressor(**work.options) if work.target.number else BagClassifier(**work.options)
    together = None if work.clusters is None else work.clusters[rows]
    model.fit(bags[rows], work.target.given(work.labels[rows]), groups=together)
    return _trained(model, bags.__getitem__)


def _means_baseline(kind: str, work: _BagFileWork | _BagWork, means: NDArray[np.float64], rows: Rows) -> Trained:
    """On the means of the bags."""
    values = None if work.target.kind == "class" else work.labels[rows]
    model = table_baseline(kind, work.options.get("class_weight"), values).fit(means[rows], work.labels[rows])
    return _trained(model, means.__getitem__)


def _trained(model: Any, data: Callable[[Rows], Any]) -> Trained:
    """A model, and what it says of rows of the data."""
    classes = getattr(model, "classes_", np.empty(0))
    return Trained(model, classes, lambda others: answers_of(model, data(others)))


def _write_card(
    folder: Path, path: Path, work: Workload, columns: list[str], report: FitReport, notes: Sequence[str]
) -> FitReport:
    """The report with more notes, which the card of the saved model holds too."""
    report = replace(report, notes=(*report.notes, *notes))
    add_to_card(folder, DataCard.of(path, work.labels, columns, work.target.columns), asdict(report))
    return report


def _bag_notes(model: Any) -> Iterator[str]:
    """Sentences on where the mean pools, and on why the instances are mapped as they are."""
    model = getattr(model, "scorer_", model)
    if model.pooling_ != "attention":
        yield "attention did not lower the validated loss: bags are pooled by the mean"
    if model.choice_.reason:
        yield model.choice_.reason
    elif model.instance_map == "auto":
        yield "no other map of the instances was compared, as the bags are too large or too few; --instance-map tries one"
    if model.queries_.shape[1] > 1 and model.n_queries == "auto":
        yield "two queries lower the validated log loss clearly; --queries 1 keeps decisions certified"


@dataclass(frozen=True, eq=False)
class _Encoded:
    """A fitted model, and how the columns of a table become its numbers."""

    model: Any
    encoding: ColumnEncoding

    def save(self, folder: Path, roles: Mapping[str, str]) -> None:
        self.model.save(folder)
        describe_table(folder, {**self.encoding.as_json(), "roles": dict(roles)})


@dataclass(frozen=True, eq=False)
class _BagWork(Workload):
    """A table of bags as models see it."""

    table: BagRows
    options: dict[str, Any]
    target: Target

    @property
    def labels(self) -> NDArray[Any]:  # type: ignore[override]
        assert self.table.labels is not None
        return self.table.labels

    @property
    def clusters(self) -> NDArray[Any] | None:  # type: ignore[override]
        return self.table.clusters

    def name_of(self, kind: str) -> str:
        return f"mean pooling + {TABLES[self.target.kind][kind]}"

    def ours(self, rows: Rows) -> Trained:
        encoding, bags = self._encode(rows)
        found = _bag_model(self, bags, rows)
        getattr(found.model, "scorer_", found.model).feature_names_in_ = np.array(encoding.names, dtype=object)
        return replace(found, model=_Encoded(found.model, encoding))

    def baseline(self, kind: str, rows: Rows) -> Trained:
        _, bags = self._encode(rows)
        means = np.add.reduceat(bags.vectors, bags.starts[:-1]) / np.diff(bags.starts)[:, None]
        return _means_baseline(kind, self, means, rows)

    def _encode(self, rows: Rows) -> tuple[ColumnEncoding, RaggedArray]:
        """All bags as numbers, in the way that these ones fix."""
        encoding = ColumnEncoding.of(self.table.columns.rows(self.table.rows_of(rows)))
        return encoding, RaggedArray(self.table.starts, encoding.encode(self.table.columns))


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
    """Train a `GroupClassifier` with some options on a table, evaluate it, and save it; baselines see all columns."""
    scheme = scheme or Scheme()
    check_writable(folder)
    check_baseline(scheme.baseline, TABLES["class"])
    mapping = _columns_by_group(path, roles, form)
    columns = list(dict.fromkeys([*roles.covariates, *(name for part in mapping.values() for name in part)]))
    reader = ColumnReader(path, columns)

    def take(piece: pd.DataFrame, first: int) -> pd.DataFrame:
        reader.add(piece)
        return piece

    labels, clusters, read_notes = _read_labels(path, roles, columns, drop_missing, form, take)
    table, options = reader.finish(), {**(options or {}), "random_state": scheme.seed}
    work = _GroupWork(table, labels, clusters, mapping, roles.covariates, options)
    report, kept, _ = evaluate_with_baselines(path, work, scheme, roles.split_by)
    encoding = kept.model.encoding
    notes = [*encoding.notes(table), *read_notes, *_selection_notes(kept.model.model)]
    kept.model.save(folder, roles.special)
    return _write_card(folder, path, work, [*roles.special.values(), *columns], report, notes)


def _columns_by_group(path: Path, roles: GroupRoles, form: TableForm) -> dict[str, list[str]]:
    """Columns by group, each in one part only."""
    check_roles([*roles.special.items(), *(("covariate", name) for name in roles.covariates)])
    if isinstance(roles.groups, str):
        columns = [name for name in column_names(path, **form) if name not in roles.special.values()]
        mapping = _group_by_prefix(columns, roles.groups, roles.covariates)
    else:
        mapping = {name: list(part) for name, part in roles.groups.items()}
    for name, members in mapping.items():
        check_roles([*roles.special.items(), *((f"member of group '{name}'", member) for member in members)])
    return mapping


def _read_labels(
    path: Path,
    roles: GroupRoles | TextRoles,
    columns: Sequence[str],
    drop_missing: bool,
    form: TableForm,
    take: Callable[[pd.DataFrame, int], pd.DataFrame],
) -> tuple[NDArray[Any], NDArray[Any] | None, list[str]]:
    """Labels, what belongs together, and notes; `take` gets each piece and the rows before it, and says which of it to use."""
    labels: list[Any] = []
    members: list[str] = []
    target = Target.of(roles.label)
    dropped, used = 0, [*roles.special.values(), *columns]
    for read in stream_table(path, used, **form):
        piece = without_gaps(read, used) if drop_missing else read
        dropped += len(read) - len(piece)
        piece = take(piece, len(labels))
        if roles.split_by is not None:
            members += non_empty_names(path, piece[roles.split_by], roles.split_by, "group", len(labels))
        labels += target.read(path, piece, len(labels))
    if not labels:
        raise UsageError(f"{shown(path)} has no rows{' without gaps' if dropped else ''}")
    labels, notes = merge_spellings(labels) if target.kind == "class" else (labels, [])
    return target.array(labels), np.array(members) if members else None, [*dropped_note(dropped), *notes]


@dataclass(frozen=True, eq=False)
class _GroupWork(Workload):
    """A table whose columns come in groups, as models see it."""

    table: MixedColumns
    labels: NDArray[Any]
    clusters: NDArray[Any] | None
    groups: Mapping[str, Sequence[str]]
    covariates: Sequence[str]
    options: dict[str, Any]

    def name_of(self, kind: str) -> str:
        return f"{TABLES['class'][kind]} on all columns"

    def ours(self, rows: Rows) -> Trained:
        from whichtoken.estimators.groups.classifier import GroupClassifier

        encoding, frame = self._encode(rows)
        groups = {name: _encoded_names(encoding, part) for name, part in self.groups.items()}
        model = GroupClassifier(groups, covariates=_encoded_names(encoding, self.covariates) or None, **self.options)
        together = None if self.clusters is None else self.clusters[rows]
        model.fit(frame.iloc[rows], self.labels[rows], groups=together)
        return Trained(
            _Encoded(model, encoding), model.classes_, lambda others: model.predict_proba(frame.iloc[others])
        )

    def baseline(self, kind: str, rows: Rows) -> Trained:
        _, frame = self._encode(rows)
        model = table_baseline(kind, self.options.get("class_weight")).fit(frame.iloc[rows], self.labels[rows])
        return Trained(model, model.classes_, lambda others: np.asarray(model.predict_proba(frame.iloc[others])))

    def _encode(self, rows: Rows) -> tuple[ColumnEncoding, pd.DataFrame]:
        """All rows as numbers, in the way that these ones fix."""
        import pandas as pd

        encoding = ColumnEncoding.of(self.table.rows(rows))
        return encoding, pd.DataFrame(encoding.encode(self.table), columns=encoding.names)


def _encoded_names(encoding: ColumnEncoding, columns: Sequence[str]) -> list[str]:
    return [name for column in columns for name in encoding.names_of(column)]


def _selection_notes(model: GroupClassifier) -> Iterator[str]:
    """Which groups are used, and what the tests or the validation saw."""
    kept, total = len(model.selected_groups_), len(model.group_names_)
    if kept:
        yield f"selected {kept} of {total} groups: {', '.join(map(str, model.selected_groups_))}"
    else:
        yield f"selected none of {total} groups: no group was seen to matter, so the base rate is predicted"
    if model.tests_ is not None:
        yield str(model.tests_)
    if model.path_ is not None and kept:
        if model.choice_.group_map != "linear" and "linear" in model.path_.maps:
            yield f"groups act nonlinearly here: the map '{model.choice_.group_map}' predicts better than lines on held-out rows"
        yield str(model.path_)


def read_mapping(path: Path) -> dict[str, list[str]]:
    """Groups from a JSON file: an object of lists of column names."""
    wanted = 'groups are written as {"size": ["width", "height"], "color": ["red"]}'
    mapping: Any = read_json(path)
    if not isinstance(mapping, dict) or not mapping:
        raise UsageError(f"{shown(path)} names no groups; {wanted}")
    for name, part in mapping.items():
        if not isinstance(part, list) or not part or not all(isinstance(column, str) for column in part):
            raise UsageError(f"{shown(path)}: group '{visible(name)}' is not a list of names of columns; {wanted}")
    return dict(mapping)


def _group_by_prefix(columns: Sequence[str], sign: str, covariates: Sequence[str]) -> dict[str, list[str]]:
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


LEAK, LEAST_FOR_LEAKS = 0.8, 20  # correlation of a token with a class, and tested texts to see it
PART = 1 << 15  # texts of an update
FEW = 100  # training documents below which a word that occurs once is kept


@dataclass(frozen=True)
class TextRoles:
    """Which column of a table of texts plays which part."""

    text: str = "text"
    label: str | Target = "label"
    split_by: str | None = None  # what belongs together
    columns: Sequence[str] = ()  # of numbers and categories beside the texts

    @property
    def special(self) -> dict[str, str]:
        """The columns that are not beside the texts, by their part."""
        named = {"text": self.text, **Target.of(self.label).roles}
        return named if self.split_by is None else {**named, "split": self.split_by}


@dataclass(frozen=True)
class UntestedFit(Shown):
    """What `whichtoken fit text` prints where there was nothing to test on."""

    training: int
    notes: tuple[str, ...]


def fit_text(
    path: Path,
    folder: Path,
    roles: TextRoles | None = None,
    scheme: Scheme | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    drop_missing: bool = False,
    memory: int | None = None,
    untested: bool = False,
    **form: Unpack[TableForm],
) -> Any:
    """Train a `TextClassifier` with some options on a table of texts and labels, evaluate it, and save it.

    Or a `TextRegressor`, if the label is a number.
    With `memory`, in bytes, texts whose counts would take more are learned in parts: a fit on as many as there is room for,
    chosen at random, then updates by the others. The baseline sees the first part only.
    Returns a `FitReport`. Too few distinct texts for a test are refused, or with `untested` only learned: an `UntestedFit`.
    """
    roles = roles or TextRoles()
    target = Target.of(roles.label)
    check_writable(folder)
    scheme = with_baseline(scheme or Scheme(), TEXTS[target.kind])
    check_roles([*roles.special.items(), *(("other", name) for name in roles.columns)])
    reader = ColumnReader(path, roles.columns) if roles.columns else None
    numbers: list[int] = []
    signatures: list[NDArray[np.uint32]] = []
    empty = marked = words = 0

    def check_texts(piece: pd.DataFrame, first: int) -> pd.DataFrame:
        """Refuse what is no text before any work, leave out rows without one, and note what there is."""
        nonlocal empty, marked, words
        filled = piece[[has_text(cell) for cell in piece[roles.text]]]
        empty += len(piece) - len(filled)
        texts = text_values(path, filled[roles.text], roles.text, first)
        marked += sum(map(has_markup, texts))
        split = split_words(texts)
        words += len(split.ids)
        signatures.append(text_signatures(split))
        numbers.extend(filled.index.tolist())
        if reader is not None:
            reader.add(filled)
        return filled

    labels, clusters, notes = _read_labels(path, roles, roles.columns, drop_missing, form, check_texts)
    same, copies = duplicate_groups(*signatures)
    signatures.clear()
    options = {**(options or {}), "random_state": scheme.seed}
    if reader is not None:
        options |= {"text": roles.text, "columns": list(roles.columns)}
    work = _TextWork(
        path, roles.text, form, options, labels, joined_clusters(clusters, copies), np.array(numbers), copies, target,
        _room(memory, len(labels), words, options), None if reader is None else reader.finish(),
    )  # fmt: skip
    with each_warning_once():
        try:
            report, kept, held = evaluate_with_baselines(path, work, scheme, roles.split_by)
        except TooFewRowsError:
            # who asked for a certain test is told that it cannot be had
            if not untested or roles.split_by is not None or scheme.folds or scheme.test_share != Scheme.test_share:
                raise
            report, kept, held = None, work.ours(np.arange(len(labels))), np.empty(0, np.intp)
            notes.append("too few distinct texts for a test: all are learned, and nothing says how good the model is")
        kept.model.save(folder)
        describe_table(folder, {"roles": roles.special})
    notes += [*_flip_note(work.flips.get(held.tobytes(), [])), *_copy_note(same, copies), *work.leaks.values()]
    if kept.model.choice_.threshold is not None:
        second = visible(str(kept.model.classes_[1]))
        notes.append(f"a text is '{second}' if the probability of that is above {kept.model.choice_.threshold:.3g}")
    if work.most is not None and work.most < (len(labels) if report is None else report.training):
        notes.append(
            f"the texts do not fit into {memory / 1e9:.3g} GB: learned from {work.most} at random, then updated by the others in"  # type: ignore[operator]
            " parts; the baseline saw only the first part"
        )
    if empty:
        notes.append(f"{pluralize(empty, 'row')} without a text {'was' if empty == 1 else 'were'} left out")
    if marked:
        notes.append(
            f"{pluralize(marked, 'text')} {'holds' if marked == 1 else 'hold'} HTML tags or character references, "
            "which do not count"
        )
    if not getattr(kept.model.choice_, "losses", True):
        notes.append(
            "too few distinct texts to hold some out: C and the null token are the defaults, and probabilities are not calibrated"
        )
    columns = [*roles.special.values(), *roles.columns]
    if reader is not None and work.beside is not None:
        fitted = kept.model.scorer_ if target.number else kept.model
        notes += fitted._columns.encoding.notes(work.beside)
    if report is not None:
        return _write_card(folder, path, work, columns, report, notes)
    add_to_card(folder, DataCard.of(path, labels, columns, target.columns), None)
    return UntestedFit(len(labels), tuple(notes))


# bytes that a fit takes for each word of its texts, for each text of the table, and that the program takes without any
WORD, TEXT, LIBRARIES = 48, 200, 640 << 20
LEAST_PART = 1000  # texts to choose settings and a vocabulary by


def _room(memory: int | None, texts: int, words: int, options: Mapping[str, Any]) -> int | None:
    """Texts that may be learned at once; None for all of them."""
    if memory is None:
        return None
    if options.get("encoder") is not None:
        raise UsageError("--memory is for words alone; leave it or --encoder out")
    longest = 1 if options.get("ngram_range") in (None, (1, 1)) else 3  # pairs and triples are counted beside words
    always = LIBRARIES + TEXT * texts
    most = int((memory - always) / (WORD * longest * max(1.0, words / texts)))
    if most >= texts:
        return None
    if most < LEAST_PART:
        needed = (always + LEAST_PART * WORD * longest * words / texts) / 1e9
        raise UsageError(f"--memory {memory / 1e9:.3g}GB is too little for these texts; give at least {needed:.2g}GB")
    return most


def _copy_note(same: NDArray[np.intp], copies: NDArray[np.intp]) -> Iterator[str]:
    """How many texts repeat another one."""
    exact, near = (len(groups) - len(np.unique(groups)) for groups in (same, copies))
    if near:
        said = f"{exact or near} of {len(same)} texts {'' if exact else 'nearly '}repeat another one"
        if exact:
            said += " word for word" + (f", {near - exact} more nearly do" if near > exact else "")
        yield f"{said}; copies are never on both sides of a split"


def joined_clusters(clusters: NDArray[Any] | None, copies: NDArray[np.intp]) -> NDArray[Any] | None:
    """What belongs together by a column or as copies of one text, (n,); None without a column."""
    if clusters is None:
        return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    codes = np.unique(clusters, return_inverse=True)[1]
    size = int(codes.max()) + 1
    links = coo_array((np.ones(len(codes), bool), (codes, size + copies)), shape=(size + copies.max() + 1,) * 2)
    return np.asarray(connected_components(links, directed=False)[1][codes])


@dataclass(frozen=True, eq=False)
class _TextWork(Workload):
    """A table of texts as models see it; each text becomes tokens once for every model that reads it."""

    path: Path
    column: str
    form: TableForm
    options: dict[str, Any]
    labels: NDArray[Any]
    clusters: NDArray[Any] | None
    numbers: Rows
    copies: Rows
    target: Target
    most: int | None = None  # texts that are learned at once
    beside: MixedColumns | None = None  # columns beside the texts
    # smallest deletions, by the rows they were found for
    flips: dict[bytes, list[Sequence[int]]] = field(default_factory=dict)
    leaks: dict[str, str] = field(default_factory=dict)  # sentences on tokens that nearly decide alone, by token
    least = 1  # a class may have one text: it is then learned, and not tested

    def name_of(self, kind: str) -> str:
        name = TEXTS[self.target.kind][kind]
        return name if self.beside is None else name.replace("TF-IDF +", "TF-IDF and columns +")

    def ours(self, rows: Rows) -> Trained:
        least = 1 if len(rows) < FEW else 2
        kind: Any = TextClassifier
        if self.target.number:
            from whichtoken.estimators.text.regressor import TextRegressor

            kind = TextRegressor
        model: Any = kind(**{"min_df": least, **self.options})
        some = self._first_part(rows)
        together = None if self.clusters is None else self.clusters[some]
        model.fit(self.data(some), self.target.given(self.labels[some]), groups=together)
        if self.target.kind != "class":
            return _trained(model, self.data)
        rest = np.setdiff1d(rows, some)
        for part, texts in self._in_parts(rest):
            model.partial_fit(texts, self.labels[part])

        def probabilities(others: Rows) -> NDArray[np.float64]:
            if self.most is not None:
                return np.concatenate([model.predict_proba(texts) for _, texts in self._in_parts(others)])
            if model._encoder is not None:
                return np.asarray(model.predict_proba(list(self.texts(others))))
            texts, added = model._split(self.data(others))
            more, counts = count_with_spelled(model, list(texts))
            if more.selection_.shape[1] == 1:
                self.flips[others.tobytes()] = [tokens.tolist() for tokens in flipping_sets(more, counts, added)]
            self.leaks.update(_leaks(counts, self.labels[others], more.token_names_))
            return more._probabilities(more._outputs(counts) + added)

        return Trained(model, model.classes_, probabilities, model.decision_weights_)

    def baseline(self, kind: str, rows: Rows) -> Trained:
        ngrams = self.options.get("ngram_range", (1, 1))
        model = text_baseline(kind, (1, 2) if ngrams == "auto" else ngrams, self.options.get("class_weight"))
        some = self._first_part(rows)
        model.fit(self.data(some), self.labels[some])

        def probabilities(others: Rows) -> NDArray[np.float64]:
            return np.concatenate([model.predict_proba(texts) for _, texts in self._in_parts(others)])

        return Trained(model, model.classes_, probabilities)

    def _first_part(self, rows: Rows) -> Rows:
        """All rows, or as many as there is room for: some of every class, the others at random."""
        if self.most is None or len(rows) <= self.most:
            return rows
        order = np.random.default_rng(self.options["random_state"]).permutation(rows)
        known = np.unique(self.labels[order], return_index=True)[1]
        return np.sort(np.concatenate([order[known], np.delete(order, known)])[: self.most])

    def _in_parts(self, rows: Rows) -> Iterator[tuple[Rows, Any]]:
        """Rows with what a model sees of them, some at a time."""
        source, size = iter(self.texts(rows)), self.most or len(rows) or 1
        for first in range(0, len(rows), min(size, PART)):
            part = rows[first : first + min(size, PART)]
            texts = list(islice(source, len(part)))
            yield part, self._with_columns(texts, part)

    def data(self, rows: Rows) -> Any:
        """What a model sees of some rows: the texts, or those with the columns beside them."""
        return self._with_columns(self.texts(rows), rows)

    def _with_columns(self, texts: Any, rows: Rows) -> Any:
        if self.beside is None:
            return texts
        from whichtoken.estimators.text.columns import TextTable

        return TextTable(texts, self.beside.rows(rows))

    def texts(self, rows: Rows) -> TextRows:
        """Texts of some rows."""
        return TextRows(self.path, self.column, self.numbers[rows], self.form)


def _flip_note(deletions: Sequence[Sequence[int]]) -> Iterator[str]:
    """How many deletions change the label of half of the documents, if any number does."""
    sizes = sorted(len(tokens) or np.inf for tokens in deletions)
    half = sizes[(len(sizes) - 1) // 2] if sizes else np.inf
    if half < np.inf:
        tokens = "1 token" if half == 1 else f"{half} tokens"
        yield f"deleting {tokens} changes the label of half of the test documents"


def _leaks(counts: Any, labels: NDArray[Any], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Tokens whose presence is almost the label itself, at most three, by the correlation of both."""
    classes, codes = np.unique(labels, return_inverse=True)
    members = np.eye(len(classes))[codes]
    holders = (counts > 0).T.astype(np.float64) @ members  # (|S|, classes)
    sizes, total = members.sum(axis=0), len(labels)
    having = holders.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = np.sqrt(having * (total - having) * sizes * (total - sizes))
        link = np.nan_to_num((holders * total - having * sizes) / shape)
    if total >= LEAST_FOR_LEAKS:
        for token in np.argsort(-link.max(axis=1))[:3]:
            k = int(link[token].argmax())
            if link[token, k] >= LEAK:
                inside, outside = (
                    holders[token, k] / sizes[k],
                    (having[token, 0] - holders[token, k]) / (total - sizes[k]),
                )
                yield (
                    names[token],
                    (
                        f"'{visible(names[token])}' nearly decides alone: {inside:.0%} of the tested texts of class"
                        f" '{visible(str(classes[k]))}' hold it and {outside:.1%} of the others;"
                        " is it a leak, such as an id, a date or markup?"
                    ),
                )


@dataclass(frozen=True, eq=False)
class TextRows:
    """Texts of some rows of a table, read from the file whenever they are gone through, and never all in memory."""

    path: Path
    column: str
    rows: Rows  # ascending
    form: TableForm = field(default_factory=TableForm)

    def __iter__(self) -> Iterator[str]:
        first = 0
        for piece in stream_table(self.path, [self.column], **self.form):
            cells = piece[self.column].tolist()
            here = slice(*np.searchsorted(self.rows, [first, first + len(cells)]))
            yield from map(cells.__getitem__, (self.rows[here] - first).tolist())
            first += len(cells)


def texts_of_table(path: Path, column: str, form: TableForm) -> Iterator[str]:
    """All texts of a table, one after the other."""
    for piece in stream_table(path, [column], **form):
        yield from (cell for cell in piece[column].tolist() if isinstance(cell, str))
