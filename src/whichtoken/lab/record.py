"""What is on record: the verdicts of every preset and the rows behind the long ones, kept beside the code.

`verdicts.json` travels in the wheel. `rows/<theory>/<claim>.sqlite.xz` are ledgers of one claim each, packed; they stay in the
repository. Both are written by `whichtoken.lab.recording`.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import whichtoken
from whichtoken.errors import UsageError
from whichtoken.lab.verdicts import Verdict

if TYPE_CHECKING:
    from whichtoken.lab.ledger import Ledger

States = Mapping[str, Mapping[str, str]]  # preset -> code of the verdict -> state
VERDICTS, POWER, ROWS = "verdicts.json", "power.json", "rows"


@dataclass(frozen=True)
class RecordedRun:
    """One run of one claim as it was recorded.

    Attributes
    ----------
    experiment, preset : str
        What was run.
    version : int
        Version of the claim at that time.
    date, machine : str
        When the run began, and on what.
    versions : Mapping[str, str]
        Versions of whichtoken and its main packages.
    points, rows, failed : int
        How many points and rows there were, and how many of the rows failed.
    seconds : float
        Computing time of all rows.
    verdicts : tuple of Verdict
        What became of each claim.

    Examples
    --------
    >>> from whichtoken.lab.record import recorded_runs
    >>> run = recorded_runs()["mirror-descent/direction", "quick"]
    >>> run.experiment, run.verdicts[0].code.split(".")[0]
    ('mirror-descent/direction', 'direction')
    """

    experiment: str
    preset: str
    version: int
    date: str
    machine: str
    versions: Mapping[str, str]
    points: int
    rows: int
    failed: int
    seconds: float
    verdicts: tuple[Verdict, ...]

    @property
    def states(self) -> dict[str, str]:
        return {verdict.code: verdict.state for verdict in self.verdicts}


def recorded_states(experiment: str) -> States:
    """The states on record of one experiment; empty for one that is new or lives outside the package."""
    return {preset: run.states for (name, preset), run in recorded_runs().items() if name == experiment}


@cache
def recorded_runs() -> Mapping[tuple[str, str], RecordedRun]:
    """Every run on record, by claim and preset."""
    stored = json.loads((record_folder() / VERDICTS).read_text(encoding="utf-8"))
    return {(run["experiment"], run["preset"]): _run(run) for run in stored}


def _run(fields: dict[str, Any]) -> RecordedRun:
    return RecordedRun(**{**fields, "verdicts": tuple(Verdict(**verdict) for verdict in fields["verdicts"])})


def record_folder() -> Path:
    """Where the record lies: beside the sources in a checkout, inside the package in an installed wheel."""
    package = Path(whichtoken.__file__).parent
    for folder in (package / "_record", package.parents[1] / "record"):
        if folder.is_dir():
            return folder
    raise UsageError("this installation has no record of expected states; install the wheel or run from a checkout")


def rows_file(experiment: str) -> Path:
    """Where the rows of a claim are kept."""
    return record_folder() / ROWS / f"{experiment}.sqlite.xz"


@contextmanager
def recorded_ledger(experiment: str) -> Iterator[Ledger]:
    """The recorded rows of a claim, unpacked for as long as they are looked at."""
    from whichtoken.lab.ledger import Ledger

    packed = rows_file(experiment)
    if not packed.is_file():
        raise UsageError(
            f"the rows of {experiment} are not on record here; they are kept in the repository, not in the wheel"
        )
    with tempfile.TemporaryDirectory(prefix="whichtoken-record-") as folder:
        path = Path(folder) / "rows.sqlite"
        with lzma.open(packed) as source:
            path.write_bytes(source.read())
        with Ledger.reading(path) as ledger:
            yield ledger
