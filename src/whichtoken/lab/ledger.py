"""The results store: one SQLite file, one transaction per finished row, written by one driver at a time."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from whichtoken import __version__
from whichtoken.errors import UsageError
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.experiment import Predicted, Row
from whichtoken.lab.plan import Plan, Task

SCHEMA = 1
APPLICATION = 0x77686963  # "whic": tells a ledger from any other SQLite file
BUSY_SECONDS = 3.0

TABLES = """
CREATE TABLE rows (
    experiment TEXT, version INTEGER, point TEXT, seed INTEGER,
    status TEXT, message TEXT, measured TEXT, seconds REAL, package_version TEXT, checksum INTEGER,
    PRIMARY KEY (experiment, version, point, seed)) WITHOUT ROWID;
CREATE TABLE predictions (
    experiment TEXT, version INTEGER, point TEXT, predicted TEXT, message TEXT, checksum INTEGER,
    PRIMARY KEY (experiment, version, point)) WITHOUT ROWID;
CREATE TABLE runs (
    experiment TEXT, preset TEXT, overrides TEXT, seeds INTEGER, started TEXT, checksum INTEGER,
    PRIMARY KEY (experiment, preset, overrides, seeds)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Run:
    """A run as it was asked for; which of its rows are there is read from the rows."""

    experiment: str
    preset: str
    overrides: Mapping[str, list[Any]]
    seeds: int | None
    started: str  # UTC, ISO format


class Ledger:
    """Rows, predictions and runs in one file.

    Use `Ledger.writing(path)` or `Ledger.reading(path)`. Every damage that can be told from the outside (truncation,
    flipped bytes, a foreign or newer file) ends in one sentence and leaves the file as it was.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    @contextmanager
    def writing(cls, path: Path) -> Iterator[Ledger]:
        """Open for the one driver that writes, making the file if need be."""
        _check_writable(path)
        with _driver_lock(path), _connected(path) as connection:
            with _one_sentence(path):
                if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    connection.executescript(
                        f"PRAGMA journal_mode=WAL; PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA};"
                        f"BEGIN; {TABLES} COMMIT;"
                    )
                _check(path, connection)
                connection.execute(
                    "PRAGMA synchronous=NORMAL"
                )  # outlives kill -9 of the driver, without an fsync per row
            yield cls(path, connection)

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[Ledger]:
        """Open an existing ledger to look at, also while a driver writes or where nothing may be written."""
        if not path.is_file():
            raise UsageError(f"no results in {path.parent}: {path.name} is missing; run 'whichtoken reproduce' first")
        # rows of a killed driver wait in the log, which `immutable` would pass over
        mode = "mode=ro" if _log_size(path) or os.access(path.parent, os.W_OK) else "immutable=1"
        with _connected(path, mode) as connection:
            with _one_sentence(path):
                _check(path, connection)
            yield cls(path, connection)

    def put(self, version: int, task: Task, row: Row[Any]) -> None:
        """Store one finished row in its own transaction."""
        values = (row.status, row.message, canonical_json(row.measured), float(row.seconds), row.package_version)
        self._insert("rows", (task.experiment, version, task.point, task.seed, *values))

    def put_prediction(self, version: int, task: Task, predicted: Mapping[str, Predicted], message: str = "") -> None:
        """Store what theory says of one point, or the message why it says nothing."""
        text = canonical_json({name: asdict(item) for name, item in predicted.items()})
        self._insert("predictions", (task.experiment, version, task.point, text, message))

    def put_run(self, run: Run) -> None:
        """Remember that this run was asked for; the latest of its kind stays."""
        overrides = canonical_json(run.overrides)
        self._insert("runs", (run.experiment, run.preset, overrides, run.seeds or 0, run.started))

    def rows(self, plan: Plan) -> dict[Task, Row[Any]]:
        """The stored rows of a plan, with their predictions, in the order of the plan.

        A prediction that failed stands behind them as a failed row of its own, with a task that has no seed.
        """
        key = (plan.experiment.id, plan.experiment.version)
        predicted: dict[str, dict[str, Predicted]] = {}
        faults: dict[Task, Row[Any]] = {}
        for _, _, point, text, message in self._select("predictions", "experiment=? AND version=?", key):
            predicted[point] = {name: Predicted(**item) for name, item in json.loads(text).items()}
            if message and point in plan.points:
                task = Task(plan.experiment.id, point, None)
                faults[task] = Row(plan.points[point], 0, "failed", f"prediction: {message}", {}, 0.0, __version__)
        stored: dict[Task, Row[Any]] = {}
        for _, _, point, seed, status, message, measured, seconds, package in self._select(
            "rows", "experiment=? AND version=?", key
        ):
            if point in plan.points:
                stored[Task(plan.experiment.id, point, seed)] = Row(
                    plan.points[point],
                    seed,
                    status,
                    message,
                    json.loads(measured),
                    seconds,
                    package,
                    predicted.get(point, {}),
                )
        return {**{task: stored[task] for task in plan.tasks if task in stored}, **faults}

    def predicted_points(self, experiment: str, version: int) -> set[str]:
        """Points whose prediction is stored."""
        return {row[2] for row in self._select("predictions", "experiment=? AND version=?", (experiment, version))}

    def runs(self) -> list[Run]:
        """All runs, the latest first."""
        found = [
            Run(experiment, preset, json.loads(overrides), seeds or None, started)
            for experiment, preset, overrides, seeds, started in self._select("runs")
        ]
        return sorted(found, key=lambda run: run.started, reverse=True)

    def records(self, experiments: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Every stored row of the experiments as flat data, for export."""
        names = (
            "experiment",
            "version",
            "point",
            "seed",
            "status",
            "message",
            "measured",
            "seconds",
            "package_version",
        )
        for experiment in experiments:
            predictions = {
                (version, point): json.loads(text)
                for _, version, point, text, _ in self._select("predictions", "experiment=?", (experiment,))
            }
            for values in self._select("rows", "experiment=?", (experiment,)):
                record = dict(zip(names, values, strict=True))
                point = record.pop("point")
                record["predicted"] = predictions.get((record["version"], point), {})
                yield {**record, "point": json.loads(point), "measured": json.loads(record["measured"])}

    def _insert(self, table: str, values: tuple[Any, ...]) -> None:
        marks = ",".join("?" * (len(values) + 1))
        with _one_sentence(self.path), self._connection:
            self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, _checksum(values)))

    def _select(self, table: str, where: str = "1", parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a table without their checksum, which was verified on opening."""
        with _one_sentence(self.path):
            for *values, _ in self._connection.execute(f"SELECT * FROM {table} WHERE {where}", parameters):
                yield tuple(values)


def _checksum(values: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(values).encode())


@contextmanager
def _driver_lock(path: Path) -> Iterator[None]:
    """Mark the one driver by a lock file: readers may look at any time, a second driver may not start."""
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UsageError(f"{path} is in use by another run; wait for it or choose another --out") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another --out") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _connected(path: Path, mode: str = "mode=rwc") -> Iterator[sqlite3.Connection]:
    if path.exists() and not path.stat().st_size and _log_size(path):
        raise _damaged(path)  # SQLite would take it for new and delete the log, which has every row
    with _one_sentence(path):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file that is foreign, newer or damaged, before anything is written."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise UsageError(f"{path} is not a whichtoken results file; choose another --out")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise UsageError(
            f"{path} was written by a newer version (schema {version}, this program knows {SCHEMA}); "
            "upgrade whichtoken or choose another --out"
        )
    if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise _damaged(path)
    # SQLite itself does not notice a flipped byte inside a value; inside a key it would hide the row from every query.
    for table in ("rows", "predictions", "runs"):
        for *values, checksum in connection.execute(f"SELECT * FROM {table}"):
            if checksum != _checksum(tuple(values)):
                raise _damaged(path)


def _check_writable(path: Path) -> None:
    """Respect write protection by its mode bits, which the superuser's own writes would ignore."""
    for item in (path, path.parent):
        if item.exists() and not (item.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)):
            raise UsageError(f"{item} is read-only; make it writable or choose another --out")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written by this user; choose another --out")


def _log_size(path: Path) -> int:
    """Bytes that SQLite has not yet moved into the file."""
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def _damaged(path: Path) -> UsageError:
    return UsageError(
        f"{path} is damaged; move it away (nothing was changed in it) or choose another --out, then run again"
    )


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file into what the user can do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise UsageError(f"{path} is locked by another program; close it or choose another --out") from error
        if "readonly" in str(error) or "unable to open" in str(error):
            raise UsageError(f"{path} cannot be opened for writing ({error}); choose another --out") from error
        if "disk" in str(error) and "full" in str(error):
            raise UsageError(
                f"no space left for {path}; finished rows are kept, free some space and run again"
            ) from error
        raise _damaged(path) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(path) from error
