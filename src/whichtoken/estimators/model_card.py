"""The card of a model folder: what the model is, what it was trained on, how good it is and what it is not for.

`model-card.json` is for programs, `model-card.html` for people. Neither is read when the model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import read_json
from whichtoken.display.html import page, text
from whichtoken.estimators.evaluation_page import STYLE, evaluation_html, rows_html
from whichtoken.files import write_text
from whichtoken.machine import part_versions

if TYPE_CHECKING:
    from whichtoken.estimators.evaluation import FitReport

CARD, CARD_PAGE = "model-card.json", "model-card.html"
BLOCK = 1 << 20
NAMES = {
    "text-classifier": "A classifier of texts",
    "bag-classifier": "A classifier of bags of instances",
    "group-classifier": "A classifier of rows whose columns come in groups",
    "attention-regressor": "A regression by one attention layer",
}
LIMITS = {
    "text-classifier": [
        "It counts words and does not see their order, beyond the pairs and triples that it was asked for.",
        "Words that the training texts do not hold are ignored.",
    ],
    "bag-classifier": [
        "A bag is a set: the order of its instances does not count.",
        "Certificates speak of deleted instances, with one query and two classes; changed instances are not covered.",
    ],
    "group-classifier": [
        "The readout is linear in the columns; counterfactuals set whole groups to their training averages.",
        "Groups that were not selected may still carry what the selected ones carry too.",
    ],
    "attention-regressor": ["It approaches least squares and does not beat it.", "The training tokens travel with it."],
}
EVERY = "Scores hold for data like those it was tested on; test it again with `whichtoken evaluate` where it is used."


@dataclass(frozen=True)
class DataCard:
    """What a model was trained and tested on."""

    file: str
    sha256: str
    rows: int
    classes: dict[str, int]
    columns: list[str]

    @classmethod
    def of(cls, path: Path, labels: NDArray[Any], columns: list[str]) -> DataCard:
        """Of a table, its labels and the columns that were used."""
        names, counts = np.unique(labels, return_counts=True)
        classes = {str(name): int(count) for name, count in zip(names, counts, strict=True)}
        return cls(path.name, _sha256(path), len(labels), classes, columns)


def first_card(kind: str, parameters: Mapping[str, Any], tensors_sha256: str) -> dict[str, Any]:
    """What is known of every model: its kind, settings, versions and limits."""
    return {
        "format": "whichtoken-model-card",
        "kind": kind,
        "tensors_sha256": tensors_sha256,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name.lower(): number for name, number in part_versions().items()},
        "settings": parameters.get("settings", {}),
        "data": None,
        "evaluation": None,
        "limits": [*LIMITS.get(kind, []), EVERY],
    }


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write both files."""
    write_text(folder / CARD, json.dumps(card, indent=1, ensure_ascii=False))
    write_text(folder / CARD_PAGE, _page(card))


def add_to_card(folder: Path, data: DataCard, report: FitReport) -> None:
    """Say in the card of a saved model what it was trained on and how good it is."""
    card = read_json(folder / CARD)
    write_card(folder, {**card, "data": asdict(data), "evaluation": asdict(report)})


def training_note(folder: Path, path: Path) -> list[str]:
    """A sentence if the card says that the model was trained on this very file."""
    if not (folder / CARD).is_file():
        return []
    data = read_json(folder / CARD).get("data") or {}
    if data.get("sha256") != _sha256(path):
        return []
    return ["the model was trained on rows of this very file, so these scores flatter it"]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _page(card: Mapping[str, Any]) -> str:
    title = NAMES.get(card["kind"], card["kind"])
    parts = [f"<h1>{text(title)}</h1>", f"<p>Written {text(card['written'])} by {_versions(card['versions'])}.</p>"]
    if card["data"] is not None:
        data = card["data"]
        parts.append(
            f"<h2>Data</h2><p>{data['rows']} rows of <code>{text(data['file'])}</code> (sha256"
            f" {text(data['sha256'][:16])}...), columns {text(', '.join(data['columns'][:40]))}.</p>"
        )
        parts.append(rows_html(["class", "rows"], [[name, str(count)] for name, count in data["classes"].items()]))
    if card["evaluation"] is not None:
        parts.append(f"<h2>Scores</h2>{evaluation_html(card['evaluation'])}")
    parts.append(f"<h2>Limits</h2><ul>{_items(card['limits'])}</ul>")
    settings = [[str(name), str(value)[:200]] for name, value in card["settings"].items()]
    parts.append(f"<h2>Settings</h2>{rows_html(['setting', 'value'], settings)}")
    return page(title, "\n".join(parts), STYLE)


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)


def _versions(versions: Mapping[str, str]) -> str:
    return text(", ".join(f"{name} {number}" for name, number in versions.items()))
