"""The card of a model folder: what the model is, what it was trained on, how good it is and what it is not for.

`model-card.json` is for programs, `model-card.html` for people. Neither is read when the model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.figures import COLORS, QUIET
from whichtoken.display.html import page, text
from whichtoken.estimators.metrics import Calibration, wilson
from whichtoken.files import write_text
from whichtoken.machine import part_versions
from whichtoken.reading import read_json

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes

STYLE = (
    "body{font:16px/1.6 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "th,td{text-align:left;padding:0 1em 0 0}svg{max-width:100%;height:auto}"
)
SCORES = ("accuracy", "log_loss", "auc")


@cache
def _templates() -> Environment:
    # here, as a library that fills templates takes longer to load than a small fit
    from whichtoken.display.templates import template_engine

    return template_engine("whichtoken.estimators")


def evaluation_page(title: str, report: Mapping[str, Any]) -> str:
    """A page that needs nothing else, from a `FitReport` as a dictionary."""
    return page(title, f"<h1>{text(title)}</h1>{evaluation_html(report)}", STYLE)


def evaluation_html(report: Mapping[str, Any]) -> str:
    """Tables and figure of a `FitReport` as a dictionary."""
    picture = calibration_svg(Calibration(**report["details"]["calibration"]))
    return _templates().get_template("evaluation.html").render(report=report, scores=SCORES, picture=picture)


def draw_calibration(axes: Axes, calibration: Calibration, name: str) -> None:
    """How often predicted labels are right, with 95 % intervals, against their probability; on the diagonal both are alike."""
    said, right = calibration.probability, calibration.right
    low, high = _ends(calibration)
    axes.plot([0, 1], [0, 1], ls="--", lw=1, color=QUIET, label="exactly right")
    reach = [[share - end for share, end in zip(right, low, strict=True)],
             [end - share for share, end in zip(right, high, strict=True)]]  # fmt: skip
    axes.errorbar(said, right, np.abs(reach), fmt="o-", capsize=3, color=COLORS[0], label=name)
    least = _least(calibration)
    axes.set(
        xlabel="probability of the predicted label", ylabel="share that is right", xlim=(least, 1.02), ylim=(least, 1.02)
    )  # fmt: skip


def calibration_svg(calibration: Calibration) -> str:
    """The same figure for a page, from a template: a library that draws anything takes longer to load than a fit."""
    least = _least(calibration)
    step = 0.1 if least > 0.4 else 0.2
    ticks = [number * step for number in range(math.ceil(least / step - 1e-9), round(1 / step) + 1)]
    points = list(zip(calibration.probability, calibration.right, *_ends(calibration), strict=True))
    drawn = {"least": least, "ticks": ticks, "points": points, "color": COLORS[0], "quiet": QUIET}
    return _templates().get_template("calibration.svg").render(drawn)


def _ends(calibration: Calibration) -> tuple[list[float], list[float]]:
    """Low and high ends of the intervals of the shares that are right."""
    ends = [wilson(share, count) for share, count in zip(calibration.right, calibration.rows, strict=True)]
    return [low for low, _ in ends], [high for _, high in ends]


def _least(calibration: Calibration) -> float:
    """Where both axes begin."""
    return max(0.0, min([*calibration.probability, *_ends(calibration)[0]]) - 0.03)


CARD, CARD_PAGE = "model-card.json", "model-card.html"
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
EVERY = "Scores hold for data like those it was tested on; test it again where it is used."


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
    write_text(folder / CARD_PAGE, _card_page(card))


def add_to_card(folder: Path, data: DataCard, report: Mapping[str, Any]) -> None:
    """Say in the card of a saved model what it was trained on and how good it is."""
    card = read_json(folder / CARD)
    write_card(folder, {**card, "data": asdict(data), "evaluation": report})


def training_note(folder: Path, path: Path) -> list[str]:
    """A sentence if the card says that the model was trained on this very file."""
    if not (folder / CARD).is_file():
        return []
    data = read_json(folder / CARD).get("data") or {}
    if data.get("sha256") != _sha256(path):
        return []
    return ["the model was trained on rows of this very file, so these scores flatter it"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _card_page(card: Mapping[str, Any]) -> str:
    title = NAMES.get(card["kind"], card["kind"])
    evaluation = "" if card["evaluation"] is None else evaluation_html(card["evaluation"])
    body = _templates().get_template("model_card.html").render(title=title, card=card, evaluation=evaluation)
    return page(title, body, STYLE)
