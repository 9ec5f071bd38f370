"""The record: the verdicts of every preset and the rows of the long ones, kept in the repository.

`verdicts.json` travels in the wheel. `rows/<theory>/<claim>.sqlite.xz` are ledgers of one claim each, packed; they stay in the
repository. Both are written by `tools/recording.py`.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import whichtoken
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.renamed import born_names
from whichtoken.lab.verdicts import Verdict, read_verdict

if TYPE_CHECKING:
    from whichtoken.lab.experiment import Experiment
    from whichtoken.lab.ledger import Ledger

RunKey = tuple[str, str, str, int]
States = Mapping[str, Mapping[str, str]]  # preset -> code of the verdict -> state
VERDICTS, STATEMENTS, POWER, ROWS = "verdicts.json", "statements.json", "power.json", "rows"


@dataclass(frozen=True)
class RunSummary(Shown):
    """One run of one claim without its rows, from a ledger or the record.

    Attributes
    ----------
    id, preset : str
        Claim and size.
    overrides : Mapping[str, list]
        Fields of the points that were set.
    seeds : int or None
        Number of repeats that was asked for.
    started : str
        When the run began, UTC in ISO format.
    judged : str
        When the run began that the verdicts are of: another one has begun since if it differs from `started`.
    version : int or None
        Version of the claim that the verdicts are of; None without verdicts.
    verdicts : tuple of Verdict
        What became of each claim.
    fault : str
        What is wrong with the claim itself.
    package_version : str
        Version of whichtoken that judged it.
    points, rows, failed, missing : int
        How many points and rows there are, how many of the rows failed, and how many planned ones are missing; 0 where the
        ledger was not asked for rows.
    seconds : float
        Computing time of all rows.
    machine : str
        Where it ran.
    versions : Mapping[str, str]
        Versions of whichtoken and its main packages.

    Examples
    --------
    >>> from whichtoken.lab.record import recorded_runs
    >>> run = recorded_runs()["mirror-descent/direction", "quick"]
    >>> run.id, run.verdicts[0].code.split(".")[0]
    ('mirror-descent/direction', 'direction')
    """

    id: str
    preset: str
    overrides: Mapping[str, list[Any]] = field(default_factory=dict)
    seeds: int | None = None
    started: str = ""
    judged: str = ""
    version: int | None = None
    verdicts: tuple[Verdict, ...] = ()
    fault: str = ""
    package_version: str = whichtoken.__version__
    points: int = 0
    rows: int = 0
    failed: int = 0
    missing: int = 0
    seconds: float = 0.0
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment[Any]:
        """The claim, as it is now."""
        from whichtoken.lab.discovery import experiments

        return experiments()[self.id]

    @property
    def key(self) -> RunKey:
        """Key of the run in its ledger."""
        return self.id, self.preset, canonical_json(self.overrides), self.seeds or 0

    @property
    def as_declared(self) -> bool:
        return not self.overrides and self.seeds is None

    @property
    def states(self) -> dict[str, str]:
        return {verdict.code: verdict.state for verdict in self.verdicts}

    @property
    def finished(self) -> int:
        """Rows that did not fail."""
        return self.rows - self.failed

    @property
    def request(self) -> str:
        """What was asked for, in a few words."""
        changes = "".join(f" {name}={','.join(map(str, values))}" for name, values in self.overrides.items())
        seeds = f" ({self.seeds} seed{'s' * (self.seeds != 1)})" if self.seeds else ""
        return f"{self.preset}{changes}{seeds}"

    @property
    def stale(self) -> str:
        """Why the verdicts do not hold for the run and the claim as they are now; empty when they do."""
        if self.version is None or self.judged != self.started:
            return "not finished; run it again"
        if self.version != self.experiment.version:
            return f"judged for version {self.version}, now {self.experiment.version}; run it again"
        return ""


def recorded_states(experiment: str) -> States:
    """The recorded states of one experiment; empty if it is new or not part of the package."""
    return {preset: run.states for (name, preset), run in recorded_runs().items() if name == experiment}


@cache
def recorded_runs() -> Mapping[tuple[str, str], RunSummary]:
    """Every run on record, by claim and preset."""
    stored = json.loads((record_folder() / VERDICTS).read_text(encoding="utf-8"))
    return {(run["experiment"], run["preset"]): _recorded_run(**run) for run in stored}


def _recorded_run(experiment: str, date: str, verdicts: list[dict[str, Any]], **fields: Any) -> RunSummary:
    return RunSummary(experiment, started=date, judged=date, verdicts=tuple(map(read_verdict, verdicts)), **fields)


def record_folder() -> Path:
    """Folder of the record: beside the sources in a checkout, inside the package in an installed wheel."""
    package = Path(whichtoken.__file__).parent
    for folder in (package / "_record", package.parents[1] / "record"):
        if folder.is_dir():
            return folder
    raise UsageError("this installation has no record of expected states; install the wheel or run from a checkout")


@cache
def recorded_borders() -> Mapping[str, list[Mapping[str, Any]]]:
    """The searches on record for where a claim stops holding: sentences, what was searched, and the command."""
    path = record_folder() / "borders.json"
    found: dict[str, list[Mapping[str, Any]]] = {}
    for search in json.loads(path.read_text(encoding="utf-8")).values() if path.is_file() else ():
        found.setdefault(search["claim"], []).append(search)
    return found


def rows_file(experiment: str) -> Path:
    """File of the recorded rows of a claim, under the name that it was born with."""
    return record_folder() / ROWS / f"{born_names(experiment).id}.sqlite.xz"


@contextmanager
def recorded_ledger(experiment: str) -> Iterator[Ledger]:
    """The recorded rows of a claim, unpacked while the context is open."""
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
