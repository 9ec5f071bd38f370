"""From a file of texts to a saved model, with honest test metrics beside those of TF-IDF and logistic regression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.bag_tables import whole_numbers_where_possible
from whichtoken.data.column_roles import check_roles, filled
from whichtoken.data.mixed_columns import dropped_note, without_gaps
from whichtoken.data.review_files import label_names, text_values
from whichtoken.data.table_files import TableForm, stream_table
from whichtoken.display.notes import each_warning_once
from whichtoken.errors import UsageError
from whichtoken.estimators.baselines import TEXTS, check_baseline, text_baseline
from whichtoken.estimators.evaluation import FitReport, Scheme, Trained, judged
from whichtoken.estimators.model_card import DataCard, add_to_card
from whichtoken.estimators.model_folder import check_writable
from whichtoken.estimators.text.classifier import TextClassifier
from whichtoken.estimators.text.counting import count_documents
from whichtoken.estimators.text.explanation import flipping_sets

if TYPE_CHECKING:
    pass

Rows = NDArray[np.intp]
FEW = 100  # training documents below which a word that occurs once is kept


@dataclass(frozen=True)
class TextRoles:
    """Which column of a table of texts plays which part."""

    text: str = "text"
    label: str = "label"
    split_by: str | None = None  # what belongs together

    @property
    def columns(self) -> dict[str, str]:
        """By part."""
        named = {"text": self.text, "label": self.label, "split": self.split_by}
        return {role: column for role, column in named.items() if column is not None}


def fit_text(
    path: Path,
    folder: Path,
    roles: TextRoles | None = None,
    scheme: Scheme | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> FitReport:
    """Train a `TextClassifier` with some options on a table of texts and labels, judge it, and save it."""
    roles, scheme = roles or TextRoles(), scheme or Scheme()
    check_writable(folder)
    check_baseline(scheme.baseline, TEXTS)
    check_roles(roles.columns.items())
    work = _read_labels(path, roles, {**(options or {}), "random_state": scheme.seed}, drop_missing, form)
    with each_warning_once():
        report, kept, held = judged(path, work, scheme, roles.split_by)
        kept.model.save(folder)
    notes = [*_flip_note(work.flips.get(held.tobytes(), [])), *dropped_note(work.dropped)]
    report = replace(report, notes=(*report.notes, *notes))
    add_to_card(folder, DataCard.of(path, work.labels, list(roles.columns.values())), report)
    return report


def _read_labels(path: Path, roles: TextRoles, options: dict[str, Any], drop_missing: bool, form: TableForm) -> _Texts:
    labels: list[str] = []
    members: list[str] = []
    numbers: list[int] = []
    dropped = 0
    for read in stream_table(path, list(roles.columns.values()), **form):
        piece = without_gaps(read, list(roles.columns.values())) if drop_missing else read
        dropped += len(read) - len(piece)
        text_values(path, piece[roles.text], roles.text, len(labels))  # what is no text is refused before any work
        labels += label_names(path, piece[roles.label], roles.label, len(labels))
        if roles.split_by is not None:
            members += filled(path, piece[roles.split_by], roles.split_by, "group", len(members))
        numbers += piece.index.tolist()
    if not labels:
        raise UsageError(f"{path} has no rows{' without gaps' if dropped else ''}")
    y = whole_numbers_where_possible(np.array(labels, dtype=object))
    together = np.array(members) if members else None
    return _Texts(path, roles.text, form, options, y, together, np.array(numbers), dropped)


class _Texts:
    """A table of texts as models see it; each text becomes tokens once for every model that reads it."""

    def __init__(
        self,
        path: Path,
        column: str,
        form: TableForm,
        options: dict[str, Any],
        labels: NDArray[Any],
        clusters: NDArray[Any] | None,
        numbers: Rows,
        dropped: int,
    ) -> None:
        self.path, self.column, self.form, self.options = path, column, form, options
        self.labels, self.clusters, self.numbers, self.dropped = labels, clusters, numbers, dropped
        self.flips: dict[bytes, list[Sequence[int]]] = {}  # smallest deletions, by the rows they were found for

    @property
    def least(self) -> int:
        """A class may have one text: it is then learned, and not judged."""
        return 1

    def name_of(self, kind: str) -> str:
        """The baseline in words."""
        return TEXTS[kind]

    def ours(self, rows: Rows) -> Trained:
        """Our model, trained on these rows."""
        least = 1 if len(rows) < FEW else 2
        model = TextClassifier(**{"least_count": least, **self.options})
        model.fit(self.texts(rows), self.labels[rows], groups=None if self.clusters is None else self.clusters[rows])

        def probabilities(others: Rows) -> NDArray[np.float64]:
            counts = count_documents(model, list(self.texts(others)))
            if model.selection_.shape[1] == 1:
                self.flips[others.tobytes()] = [tokens.tolist() for tokens in flipping_sets(model, counts)]
            return model._probabilities(model._outputs(counts))

        return Trained(model, model.classes_, probabilities)

    def baseline(self, kind: str, rows: Rows) -> Trained:
        """What a user would take instead, trained on these rows."""
        model = text_baseline(kind, self.options.get("ngrams", 1), self.options.get("class_weight"))
        model.fit(self.texts(rows), self.labels[rows])
        return Trained(model, model.classes_, lambda others: np.asarray(model.predict_proba(self.texts(others))))

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
