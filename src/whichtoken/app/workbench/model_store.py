"""The store of trained models: each in its own folder, with its scores and the data it was trained on."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError
from whichtoken.files import cannot_write, write_text
from whichtoken.reading import read_json, readable

if TYPE_CHECKING:
    from whichtoken.app.applying import Applied

KINDS = {"text": "documents", "bags": "bags of instances", "groups": "a table with groups of columns"}
NAME = re.compile(r"[a-z0-9-]{1,40}")
FILE = re.compile(r"data\.[a-z]+")  # of the rows, beside the model
MOST_DOCUMENTS = 500  # of the training file that are listed and predicted
MOST_TOKENS = 1000  # in the importance table
MOST_CHARACTERS = 20_000  # of a text to explain
DEMO = "demo"  # the bundled model


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
    test: int
    notes: list[str]
    ours: _Scores
    baseline: _Scores | None
    majority: _Scores | None
    judged_by: str = ""


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
        from whichtoken.app.movie_reviews import DATA, EXAMPLES, FOLDER

        if DEMO in {card.id for card in self.cards()}:
            return
        judged = read_json(FOLDER / "model-card.json")
        shutil.copytree(FOLDER, self.new_folder(DEMO) / "model", dirs_exist_ok=True)
        shutil.copyfile(EXAMPLES, self.folder(DEMO) / "data.csv")
        report = {**judged["evaluation"], "notes": [f"trained on {DATA}", *judged["evaluation"]["notes"]]}
        self.put(ModelCard(DEMO, "movie reviews", "text", "label", "text", "data.csv", judged["written"], report))

    def put(self, card: ModelCard) -> None:
        """Write the card, after everything else is written: it marks a finished model."""
        write_text(self.folder(card.id) / "card.json", json.dumps(asdict(card), indent=1, allow_nan=False))

    def new_folder(self, id: str) -> Path:
        """Create a private folder for a model."""
        try:
            self.folder(id).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise cannot_write(self.folder(id), error) from error
        return self.folder(id)

    def _read(self, id: str) -> ModelCard | None:
        try:
            card: ModelCard = _checks()[ModelCard].validate_python(_read_json(self.folder(id) / "card.json"))
            _checks()[_Report].validate_python(card.report)
            return card if card.id == id and FILE.fullmatch(card.data) and card.kind in KINDS else None
        except ValueError:
            # a damaged card must not hide the others
            return None

    def estimator(self, id: str) -> Any:
        """The trained model."""
        return _loaded(self.folder(self.card(id).id) / "model", self.card(id).created)

    def applied(self, id: str) -> Applied:
        """The model on the first rows of its own data."""
        card = self.card(id)
        return _applied(self.folder(id), card.data, card.column, card.created)

    def documents(self, id: str) -> list[dict[str, Any]]:
        """The first rows of the data: text, true label, predicted label and its probability."""
        card = self.card(id)
        return _documents(self.folder(id), card.data, card.column, card.label, card.created)

    def explanation(self, id: str, place: int) -> dict[str, Any]:
        """Why a row of the data gets its label."""
        card = self.card(id)
        if card.kind == "text":
            return self.explain_text(id, self.documents(id)[place]["text"])
        return _explanations(self.folder(id), card.data, card.column, card.created)[place]

    def explain_text(self, id: str, text: str) -> dict[str, Any]:
        """Why a text gets its label, and how many changes of words cannot change it."""
        model = self.estimator(id)
        if not hasattr(model, "vocabulary_"):
            raise UsageError("this model does not read texts; choose one of its rows instead")
        if len(text) > MOST_CHARACTERS:
            raise UsageError(f"the text has {len(text)} characters; give one of at most {MOST_CHARACTERS}")
        if not text.strip():
            raise UsageError("the text is empty; write one with words in it")
        [explanation] = model.explain([text])
        certificate: dict[str, int] = {}
        # a model with several queries has no certificates
        with suppress(ValueError, NotImplementedError):
            table = model.certificates([text])
            whole = [name for name in table.columns if table[name].dtype.kind in "iu"]
            certificate = {str(name): int(table[name].iloc[0]) for name in whole}
        return {**explanation.as_json(), "classes": _plain(model.classes_), "certificate": certificate}

    def importance(self, id: str) -> dict[str, Any]:
        """The importance of each token, the most important first."""
        return _importance(self.folder(id), self.card(id).created)

    def archive(self, id: str) -> bytes:
        """The model folder as a zip file."""
        folder, packed = self.folder(self.card(id).id) / "model", io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.write(path, f"{id}/{path.relative_to(folder)}")
        return packed.getvalue()


@lru_cache(maxsize=8)
def _loaded(folder: Path, _: str) -> Any:
    from whichtoken.estimators import load_estimator

    return load_estimator(folder)


@lru_cache(maxsize=8)
def _applied(folder: Path, data: str, column: str | None, created: str) -> Applied:
    from whichtoken.app.applying import apply_to_table
    from whichtoken.estimators.model_folder import read_folder

    opened = read_folder(folder / "model")
    return apply_to_table(opened, _loaded(folder / "model", created), folder / data, column, rows=MOST_DOCUMENTS)


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


def _cached(path: Path, created: str, kind: Any, compute: Callable[[], Any]) -> Any:
    """What was computed when the model was trained: a page that shows it needs neither the model nor its libraries."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored = _read_json(path)
        if stored["created"] == created:
            _checks()[kind].validate_python(stored["found"])
            return stored["found"]
    result = compute()
    # if it cannot be written, it is computed again
    with suppress(UsageError):
        write_text(path, json.dumps({"created": created, "found": result}))
    return result


@lru_cache(maxsize=8)
def _documents(folder: Path, data: str, column: str | None, label: str, created: str) -> list[dict[str, Any]]:
    def predict() -> list[dict[str, Any]]:
        applied = _applied(folder, data, column, created)
        probabilities = applied.probabilities()
        names = [str(applied.classes[k]) for k in probabilities.argmax(axis=1)]
        lines = []
        for place, (_, row) in enumerate(applied.table.iterrows()):
            text = str(row[column]) if column is not None else f"row {place + 1}"
            true = str(row[label]) if label in applied.table.columns else ""
            share = float(probabilities[place].max())
            lines.append({"text": text, "true": true, "said": names[place], "probability": share})
        return lines

    documents: list[dict[str, Any]] = _cached(folder / "documents.json", created, list[_Document], predict)
    return documents


@lru_cache(maxsize=4)
def _explanations(folder: Path, data: str, column: str | None, created: str) -> Sequence[dict[str, Any]]:
    applied = _applied(folder, data, column, created)
    return [{**item.as_json(), "classes": _plain(applied.classes)} for item in applied.explain()]


@lru_cache(maxsize=8)
def _importance(folder: Path, created: str) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        model = _loaded(folder / "model", created)
        if not hasattr(model, "token_importance"):
            return {"columns": [], "rows": [], "total": 0}
        table = model.token_importance()
        rows = [[_plain(cell) for cell in row] for row in table.head(MOST_TOKENS).itertuples(index=False)]
        return {"columns": [str(name) for name in table.columns], "rows": rows, "total": len(table)}

    importance: dict[str, Any] = _cached(folder / "importance.json", created, _Importance, compute)
    return importance


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
