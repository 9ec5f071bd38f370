"""What is on record: the state of every verdict at every preset, kept beside the code and carried by the wheel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import whichtoken
from whichtoken.errors import UsageError

States = Mapping[str, Mapping[str, str]]  # preset -> code of the verdict -> state


def recorded_states(experiment: str) -> States:
    """The states on record of one experiment; empty for one that is new or lives outside the package."""
    states: States = _all_states().get(experiment, {})
    return states


@cache
def _all_states() -> dict[str, States]:
    states: dict[str, States] = json.loads((record_folder() / "states.json").read_text(encoding="utf-8"))
    return states


def record_folder() -> Path:
    """Where the record lies: beside the sources in a checkout, inside the package in an installed wheel."""
    package = Path(whichtoken.__file__).parent
    for folder in (package / "_record", package.parents[1] / "record"):
        if folder.is_dir():
            return folder
    raise UsageError("this installation has no record of expected states; install the wheel or run from a checkout")
