"""Renew the JSON schemas of what `reproduce --json` and `stress --json` write: `python tools/json_schemas.py`.

`reproduce.schema.json` and `stress.schema.json` in `whichtoken.app` are made from the types below, for programs that collect
verdicts. A field may be added without a new version; a field that changes or goes raises it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from whichtoken.lab.borders import Border, CounterExample
from whichtoken.lab.experiment import Predicted
from whichtoken.lab.results import JSON_VERSION
from whichtoken.lab.verdicts import Verdict


@dataclass(frozen=True)
class RowForm:
    """One repeat of one point."""

    point: dict[str, Any]
    seed: int
    status: Literal["ok", "failed"]
    message: str
    measured: dict[str, Any]
    predicted: dict[str, Predicted]
    seconds: float
    package_version: str


@dataclass(frozen=True)
class RunForm:
    """One claim at one size."""

    id: str
    preset: str
    points: int
    failed: int
    seconds: float
    fault: str
    verdicts: list[Verdict]
    rows: list[RowForm]


@dataclass(frozen=True)
class ReproduceForm:
    """What `whichtoken reproduce --json` writes."""

    schema: Literal[1]
    experiments: list[RunForm]


@dataclass(frozen=True)
class TrialForm:
    """One set of changed fields that a search has tried."""

    changes: dict[str, Any]
    repeats: int
    states: dict[str, str]
    margins: dict[str, float | None]


@dataclass(frozen=True)
class StressForm:
    """What `whichtoken stress --json` writes."""

    schema: Literal[1]
    claim: str
    held: list[str]
    borders: list[Border]
    counterexamples: list[CounterExample]
    searched: dict[str, tuple[float, float]]
    notes: list[str]
    trials: list[TrialForm]
    rows: int
    seconds: float
    default: dict[str, float]
    map_fields: tuple[str, ...]


FORMS: Mapping[str, Any] = {"reproduce": ReproduceForm, "stress": StressForm}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON schema of the file that a command writes."""
    found: dict[str, Any] = TypeAdapter(FORMS[name]).json_schema()
    address = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": address, "$id": f"whichtoken-{name}-{JSON_VERSION}.schema.json", **found}


def stored_schema(name: str) -> Path:
    """The file of a schema in the package."""
    return Path(str(files("whichtoken.app") / f"{name}.schema.json"))


if __name__ == "__main__":
    for name in FORMS:
        stored_schema(name).write_text(json.dumps(json_schema(name), indent=1) + "\n", encoding="utf-8")
