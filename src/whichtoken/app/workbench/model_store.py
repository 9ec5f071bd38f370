"""The store of trained models: each in its own folder, with its scores and the data it was trained on."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.errors import UsageError
from whichtoken.files import write_text, writing
from whichtoken.reading import parse_json, read_json, read_text, readable

if TYPE_CHECKING:
    from whichtoken.app.applying import Applied
    from whichtoken.estimators import Explanation

KINDS = {"text": "documents", "bags": "bags of instances", "groups": "a table with groups of columns"}
NAME = re.compile(r"[a-z0-9-]{1,40}")
FILE = re.compile(r"data\.[a-z]+")  # of the rows, beside the model
MOST_DOCUMENTS = 500  # of the training file that are listed and predicted
MOST_TOKENS = 1000  # in the importance table
PAGE_DOCUMENTS = 50  # of the page of explanations to download
DEMO = "demo"  # the bundled model
EXPLAINER = "explainer.json"  # a model as the browser has it, beside the model
EXAMPLES = 4  # texts that the explainer offers
THRESHOLD_NOTE = "threshold set to "


@dataclass(frozen=True)
class ModelCard:
    """The description of one model."""

    id: str
    title: str
    kind: str
    label: str  # column
    column: str | None  # of the texts or of the bags
    data: str  # name of the file in the folder
    created: str
    report: dict[str, Any]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Ours, the baseline and the most frequent class."""
        return [self.report[name] for name in ("ours", "baseline", "majority") if self.report.get(name)]


@dataclass(frozen=True)
class _Scores:
    """The scores that pages show."""

    name: str
    accuracy: float
    log_loss: float | None
    auc: float | None
    intervals: dict[str, tuple[float | None, float | None]]


@dataclass(frozen=True)
class _Report:
    """The part of a model's report that pages show."""

    training: int
    notes: list[str]
    test: int = 0  # rows; none where there were too few texts to hold some out
    ours: _Scores | None = None
    baseline: _Scores | None = None
    majority: _Scores | None = None
    judged_by: str = ""

    def __post_init__(self) -> None:
        scores = {self.ours is not None, self.majority is not None, self.test > 0}
        if len(scores) > 1 or (self.baseline and not self.ours):
            raise ValueError("scores and the rows of a test go together")


@dataclass(frozen=True)
class _Document:
    """One row of the data as pages list it."""

    text: str
    true: str
    said: str
    probability: float


@dataclass(frozen=True)
class _Importance:
    """The table of tokens."""

    columns: list[str]
    rows: list[list[Any]]
    total: int


class ModelStore:
    """The models of one workbench."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def cards(self) -> list[ModelCard]:
        """Every finished model, the latest first, the bundled one last."""
        try:
            names = [entry.name for entry in self.home.iterdir() if NAME.fullmatch(entry.name)]
        except OSError:
            return []
        found = [card for name in names if (card := self._read(name)) is not None]
        return sorted(found, key=lambda card: (card.id != DEMO, card.created), reverse=True)

    def card(self, id: str) -> ModelCard:
        """One model; KeyError if there is none."""
        card = self._read(id) if NAME.fullmatch(id) else None
        if card is None:
            raise KeyError(id)
        return card

    def folder(self, id: str) -> Path:
        return self.home / id

    def add_movie_model(self) -> None:
        """Add the bundled classifier of movie reviews, if it is not there yet."""
        from whichtoken.app.movie_reviews import DATA, FOLDER, REVIEW
        from whichtoken.app.movie_reviews import EXAMPLES as REVIEWS
        from whichtoken.estimators.model_folder import load_to_answer

        if DEMO in {card.id for card in self.cards()}:
            return
        judged = read_json(FOLDER / "model-card.json")
        shutil.copytree(FOLDER, self.new_folder(DEMO) / "model", dirs_exist_ok=True)
        shutil.copyfile(REVIEWS, self.folder(DEMO) / "data.csv")
        report = {**judged["evaluation"], "notes": [f"trained on {DATA}", *judged["evaluation"]["notes"]]}
        self.put(ModelCard(DEMO, "movie reviews", "text", "label", "text", "data.csv", judged["written"], report))
        # with what needs no scikit-learn, so that the first page is ready at once
        reviews = [REVIEW, *(line["text"] for line in csv.DictReader(io.StringIO(REVIEWS.read_text(encoding="utf-8"))))]
        StoredModel(self.card(DEMO), self.folder(DEMO)).store_explainer(load_to_answer(FOLDER), reviews)

    def stored_explainer(self, card: ModelCard) -> str | None:
        """What `StoredModel.explainer` wrote for this very model: it is sent without loading the model."""
        with suppress(ValueError, RecursionError):
            first, _, packed = read_text(self.folder(card.id) / EXPLAINER).partition("\n")
            return packed if first == card.created and isinstance(parse_json(packed), dict) else None
        return None

    def put(self, card: ModelCard) -> None:
        """Write the card, after everything else is written: it marks a finished model."""
        write_text(self.folder(card.id) / "card.json", json.dumps(asdict(card), indent=1, allow_nan=False))

    def new_folder(self, id: str) -> Path:
        """Create a private folder for a model."""
        with writing(self.folder(id)):
            self.folder(id).mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.folder(id)

    def _read(self, id: str) -> ModelCard | None:
        try:
            card: ModelCard = _checks()[ModelCard].validate_python(_read_json(self.folder(id) / "card.json"))
            report = asdict(_checks()[_Report].validate_python(card.report)) | card.report  # pages ask for every field
            known = card.id == id and FILE.fullmatch(card.data) and card.kind in KINDS
            return replace(card, report=report) if known else None
        except ValueError:
            # a damaged card must not hide the others
            return None

    def open(self, id: str) -> StoredModel:
        """A model with what was computed of it before."""
        return _open_model(self.home, id, self.card(id).created)

    def ask(self, id: str, what: str, *arguments: Any) -> Any:
        """What a worker answers about a model: a property of `StoredModel`, or the result of a method."""
        found = getattr(self.open(id), what)
        return found(*arguments) if callable(found) else found


class StoredModel:
    """A trained model and its data; everything is loaded or computed when it is first asked for."""

    def __init__(self, card: ModelCard, folder: Path) -> None:
        self.card, self.folder = card, folder

    @cached_property
    def estimator(self) -> Any:
        """The trained model."""
        from whichtoken.estimators import load_estimator

        return load_estimator(self.folder / "model")

    @cached_property
    def applied(self) -> Applied:
        """The model on the first rows of its own data."""
        from whichtoken.app.applying import apply_to_table
        from whichtoken.estimators.model_folder import read_folder

        opened, data = read_folder(self.folder / "model"), self.folder / self.card.data
        return apply_to_table(opened, self.estimator, data, self.card.column, rows=MOST_DOCUMENTS)

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The first rows of the data: text, true label, predicted label and its probability."""

        def predict() -> list[dict[str, Any]]:
            import numpy as np

            table, probabilities = self.applied.table, self.applied.probabilities()
            empty = np.asarray(np.isnan(probabilities).any(axis=1))
            codes = (probabilities * self.applied.weights).argmax(axis=1)
            names = ["" if gap else str(self.applied.classes[k]) for k, gap in zip(codes, empty, strict=True)]
            column, label, rows = self.card.column, self.card.label, range(len(table))
            texts = [f"row {row + 1}" for row in rows] if column is None else map(str, table[column])
            true = map(str, table[label]) if label in table.columns else [""] * len(table)
            shares = np.where(empty, 0.0, probabilities[np.arange(len(codes)), codes]).tolist()
            lines = zip(texts, true, names, shares, strict=True)
            return [dict(zip(("text", "true", "said", "probability"), line, strict=True)) for line in lines]

        documents: list[dict[str, Any]] = self._read_or_compute("documents.json", list[_Document], predict)
        return documents

    @cached_property
    def importance(self) -> dict[str, Any]:
        """The importance of each token, the most important first."""

        def compute() -> dict[str, Any]:
            if not hasattr(self.estimator, "token_importance"):
                return {"columns": [], "rows": [], "total": 0}
            table = self.estimator.token_importance()
            rows = [[_plain(cell) for cell in row] for row in table.head(MOST_TOKENS).itertuples(index=False)]
            return {"columns": [str(name) for name in table.columns], "rows": rows, "total": len(table)}

        importance: dict[str, Any] = self._read_or_compute("importance.json", _Importance, compute)
        return importance

    @cached_property
    def _explanations(self) -> list[Explanation]:
        return [item for item in self.applied.explain() if item]

    def explanation(self, place: int) -> dict[str, Any]:
        """Why a row of the data gets its label."""
        from whichtoken.display.decision import decision_html
        from whichtoken.display.html import asset, text

        found = self._explanations[place]
        view = found.view(place + 1)
        heading = f'<p class="lead"><b>{text(view.label)}</b> with probability {view.probability:.3f}</p>'
        shown = f"{decision_html(view, heading)}{asset('legend.html')}"
        return {**found.as_json(), "classes": _plain(self.applied.classes), "shown": shown}

    def _text_model(self) -> Any:
        if not hasattr(self.estimator, "vocabulary_"):
            raise UsageError("this model does not read texts; choose one of its rows instead")
        return self.estimator

    def explainer(self) -> str:
        """The model as JSON, for the explainer in the browser."""
        return self.store_explainer(self._text_model(), [document["text"] for document in self.documents])

    def store_explainer(self, model: Any, texts: Sequence[str]) -> str:
        """Write the JSON of the explainer beside the model, with the date of its card, and return it."""
        from whichtoken.estimators.text.explainer import check_exportable, pack_model, reduced

        check_exportable(model)
        # the owner's own model, on the owner's machine: nothing is left out
        whole = reduced(model, np.ones(len(model.vocabulary_), dtype=bool))
        packed = pack_model(whole, texts[:EXAMPLES], title=self.card.title, card={"evaluation": self.card.report})
        text = json.dumps(packed, ensure_ascii=False, allow_nan=False)
        # if it cannot be written, it is computed again
        with suppress(UsageError):
            write_text(self.folder / EXPLAINER, f"{self.card.created}\n{text}")
        return text

    def explainer_page(self) -> bytes:
        """One file that holds the model, without the words of few documents."""
        from whichtoken.app.applying import explainer_settings
        from whichtoken.estimators.model_folder import CARD, read_card, read_folder

        opened = read_folder(self.folder / "model")
        about = explainer_settings(opened) or {"compare_on": [document["text"] for document in self.documents]}
        card = read_card(opened.folder) if (opened.folder / CARD).is_file() else None
        save = partial(self.estimator.save_explainer, title=self.card.title, card=card, **about)
        return _written("page.html", save)

    def explanation_page(self) -> str:
        """The explanations of the first documents as one page without other files."""
        from whichtoken.app.pages.explanations import as_html

        if self.card.kind == "text":
            return as_html(self.estimator.explain([document["text"] for document in self.documents[:PAGE_DOCUMENTS]]))
        return as_html(list(self.applied.explain())[:PAGE_DOCUMENTS])

    def predictions(self) -> bytes:
        """The data with its predictions, as CSV."""
        from whichtoken.app.evaluation import add_predictions
        from whichtoken.tables import write_table

        found = self.applied
        table = add_predictions(found.table, found.classes, found.probabilities(), weights=found.weights)
        return _written("predictions.csv", lambda path: write_table(table, path, spreadsheet_safe=True))

    def set_threshold(self, threshold: float) -> None:
        """Save the model with another threshold; what is known of its data stays, and its scores get a note."""
        from whichtoken.estimators.model_folder import CARD, describe_table, read_folder, write_card

        model, opened = self._text_model(), read_folder(self.folder / "model")
        if len(model.classes_) != 2 or model._encoder is not None:
            raise UsageError("a threshold is for two labels and a model without an encoder")
        card = read_json(opened.folder / CARD) if (opened.folder / CARD).is_file() else None
        model.threshold, model.choice_ = threshold, replace(model.choice_, threshold=threshold)
        model.save(opened.folder)
        if opened.table is not None:
            describe_table(opened.folder, opened.table)
        if card is not None:
            write_card(opened.folder, card)
        report = self.card.report
        kept = [note for note in report["notes"] if not note.startswith(THRESHOLD_NOTE)]
        note = f"{THRESHOLD_NOTE}{threshold:g} for {model.classes_[1]}; the scores above were measured before that"
        created = datetime.now(UTC).isoformat()
        report = {**report, "notes": [*kept, note], "threshold": threshold}
        ModelStore(self.folder.parent).put(replace(self.card, created=created, report=report))

    def archive(self) -> bytes:
        """The model folder as a zip file."""
        folder, packed = self.folder / "model", io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.write(path, f"{self.card.id}/{path.relative_to(folder)}")
        return packed.getvalue()

    def _read_or_compute(self, name: str, kind: Any, compute: Callable[[], Any]) -> Any:
        """What was computed when the model was trained: a page that shows it needs neither the model nor its libraries."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            stored = _read_json(self.folder / name)
            if stored["created"] == self.card.created:
                _checks()[kind].validate_python(stored["found"])
                return stored["found"]
        result = compute()
        # if it cannot be written, it is computed again
        with suppress(UsageError):
            write_text(self.folder / name, json.dumps({"created": self.card.created, "found": result}))
        return result


@lru_cache(maxsize=8)
def _open_model(home: Path, id: str, _: str) -> StoredModel:
    return StoredModel(ModelStore(home).card(id), home / id)


@cache
def _checks() -> Mapping[Any, Any]:
    """Schemas of the files that pages show."""
    from pydantic import TypeAdapter

    return {kind: TypeAdapter(kind) for kind in (ModelCard, _Report, list[_Document], _Importance)}


def _read_json(path: Path) -> Any:
    """A value that pages can show; anything else in the file is a `UsageError`."""
    with readable(path, "JSON"):
        value = read_json(path)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return value


def _written(name: str, write: Callable[[Path], object]) -> bytes:
    """The content of a file that a function writes."""
    with writing(name), TemporaryDirectory(prefix="whichtoken-") as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
