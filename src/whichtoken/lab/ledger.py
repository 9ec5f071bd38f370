"""The ledger of results: one SQLite file, one transaction per finished row, written by one driver at a time."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whichtoken import __version__
from whichtoken.errors import UsageError
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.experiment import Predicted, Row
from whichtoken.lab.plan import RunPlan, RunTask
from whichtoken.lab.record import RunSummary
from whichtoken.lab.renamed import Names, born_names, current_names
from whichtoken.lab.verdicts import readable_verdicts

SCHEMA = 2  # that this program reads and writes
APPLICATION = 0x77686963  # "whic": tells a ledger from other SQLite files
BUSY_SECONDS = 3.0
SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL", dict: "TEXT", list: "TEXT"}  # the last two as JSON


@dataclass(frozen=True)
class Table:
    """A table: its columns, and how many of them are its key."""

    columns: dict[str, type]
    key: int

    def definition(self, name: str) -> str:
        columns = ", ".join(f"{column} {SQL_TYPES[kind]}" for column, kind in self.columns.items())
        key = ", ".join(list(self.columns)[: self.key])
        return f"CREATE TABLE {name} ({columns}, checksum INTEGER, PRIMARY KEY ({key})) WITHOUT ROWID"


CLAIM = {"experiment": str, "version": int}
RUN = {"experiment": str, "preset": str, "overrides": dict, "seeds": int}
TABLES = {
    "rows": Table(
        {**CLAIM, "point": str, "seed": int, "status": str, "message": str, "measured": dict, "seconds": float,
         "package_version": str}, key=4,
    ),
    "predictions": Table({**CLAIM, "point": str, "predicted": dict, "message": str}, key=3),
    "runs": Table({**RUN, "started": str}, key=4),
    "verdicts": Table(
        {**RUN, "started": str, "version": int, "verdicts": list, "fault": str, "package_version": str}, key=4
    ),
}  # fmt: skip


def checksum(values: tuple[Any, ...]) -> int:
    """Checksum that is stored with a row: SQLite itself does not detect a flipped byte inside a value."""
    return zlib.crc32(repr(values).encode(errors="backslashreplace"))


def open_to_read(path: Path) -> closing[sqlite3.Connection]:
    """A read-only connection, also while a driver writes, in a read-only folder, or to a file of an older schema."""
    _check_kind(path)
    if not path.is_file():
        raise UsageError(f"no results in {path.parent}: {path.name} is missing; run 'whichtoken reproduce' first")
    # rows of a killed driver are still in the log, which `immutable` would ignore
    mode = "mode=ro" if _log_size(path) or os.access(path.parent, os.W_OK) else "immutable=1"
    return _connect(path, mode)


def file_gone(path: Path) -> UsageError:
    return UsageError(
        f"{path} was deleted, moved, replaced or overwritten while this run wrote to it, and its rows with it; "
        "put the file back if you have it, and run the same command again to compute what is missing"
    )


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file that is not ours, or has another schema than that of this program."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise UsageError(f"{path} is not a whichtoken results file; choose another output folder")
    schema = _pragma(connection, "user_version")
    if schema > SCHEMA:
        raise UsageError(
            f"{path} was written by a newer version (schema {schema}, this program knows {SCHEMA}); "
            "upgrade whichtoken or choose another output folder"
        )
    if schema < SCHEMA:
        raise UsageError(
            f"{path} has schema {schema}, and this program reads schema {SCHEMA}; move it away (nothing was changed in it) or "
            "choose another output folder, and run the claims again"
        )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type='table'"))
    for name, table in TABLES.items():
        if _plain(found.get(name) or "") != _plain(table.definition(name)):
            raise damaged_file(path)


def verify(path: Path, connection: sqlite3.Connection, name: str) -> None:
    """Refuse a table whose pages or rows are not as they were written.

    Every row is read: a byte flipped inside a key, or a page in another's place, would hide rows from every query. Lost pages
    are found only by a check of the whole file, which is too slow for a list of runs and done before rows are read.
    """
    part = "" if name in ("rows", "predictions") else f"({name})"
    if connection.execute(f"PRAGMA quick_check{part}").fetchone()[0] != "ok":
        raise damaged_file(path)
    table, last = TABLES[name], None
    for *values, stored in connection.execute(f"SELECT {', '.join(table.columns)}, checksum FROM {name}"):
        if stored != checksum(tuple(values)):
            raise damaged_file(path)
        key = tuple(values[: table.key])
        for (column, kind), value in zip(table.columns.items(), key, strict=False):
            if type(value) is not (str if kind is dict else kind):
                raise wrong_value(path, name, column)
        if last is not None and key <= last:
            raise damaged_file(path)
        last = key


def parse_value(path: Path, table: str, column: str, kind: type, value: Any) -> Any:
    """A value in the type of its column, with JSON parsed; raises if it has another type."""
    try:
        # int refuses the constants NaN and Infinity, which are not JSON
        item = json.loads(value, parse_constant=int) if kind in (dict, list) else value
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong_value(path, table, column) from error
    if type(item) is not kind:
        raise wrong_value(path, table, column)
    return item


def translate(table: str, values: Sequence[Any], names: Names) -> tuple[Any, ...]:
    """The values of one row under other names, since the file has the names that a claim was born with."""
    fields = bool(names.fields or names.values)
    added = bool(names.left_out or names.filled_in)
    renamed = {
        "point": fields or added, "overrides": fields, "verdicts": bool(names.words), "measured": bool(names.measured)
    }  # fmt: skip

    def translate_value(column: str, value: Any) -> Any:
        if column == "experiment":
            return names.id
        if not renamed.get(column):
            return value
        try:
            item = json.loads(value)
            if column == "verdicts":
                return canonical_json([{**verdict, "code": names.code(verdict["code"])} for verdict in item])
            names_of = {"point": names.point, "measured": names.measurement, "overrides": names.overrides}[column]
            return canonical_json(names_of(item))
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            return value  # damaged: `parse_value` reports it

    return tuple(translate_value(column, value) for column, value in zip(TABLES[table].columns, values, strict=True))


def wrong_value(path: Path, table: str, column: str) -> UsageError:
    return UsageError(
        f"{path} has a value of the wrong kind in {table}.{column}, which this program never writes; "
        "move the file away (nothing was changed in it) or choose another output folder"
    )


def damaged_file(path: Path) -> UsageError:
    return UsageError(
        f"{path} is damaged; move it away (nothing was changed in it) or choose another output folder, then run again"
    )


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a sentence that says what to do; a failing disk is not a damaged file."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, json.JSONDecodeError, OverflowError) as error:
        raise _sentence(path, error) from error
    except MemoryError as error:
        raise UsageError(f"{path} needs more memory than is free; close other programs and run again") from error


def _sentence(path: Path, error: Exception) -> UsageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file is truncated
        return damaged_file(path)
    match code & 0xFF:  # the primary result code
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return UsageError(f"{path} is locked by another program; close it or choose another output folder")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return UsageError(f"{path} cannot be opened for writing ({error}); choose another output folder")
        case sqlite3.SQLITE_FULL:
            return UsageError(f"no space left for {path}; finished rows are kept, free some space and run again")
        case sqlite3.SQLITE_IOERR:
            return UsageError(
                f"{path}: the system could not read or write it ({error}, {error.sqlite_errorname}); "  # type: ignore[attr-defined]
                "finished rows are kept; check the disk, your quota and the limit on the size of files, then run again"
            )
    return damaged_file(path)


def _is_new(connection: sqlite3.Connection) -> bool:
    """Whether the file is empty and not marked by another program."""
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return empty and _pragma(connection, "application_id") == 0 == _pragma(connection, "user_version")


def _creation() -> str:
    """The SQL that makes our tables in an empty file, in one transaction."""
    made = "; ".join(table.definition(name) for name, table in TABLES.items())
    return f"BEGIN IMMEDIATE; {made}; PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA}; COMMIT;"


def _driver_lock(path: Path) -> AbstractContextManager[Any]:
    """Lock out a second driver by a lock file; readers are not affected."""
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # links to one file share its lock
        return FileLock(f"{os.path.realpath(path)}.lock", timeout=0).acquire()
    except Timeout:
        raise UsageError(f"{path} is in use by another run; wait for it or choose another output folder") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another output folder") from error


def _connect(path: Path, mode: str = "mode=rwc") -> closing[sqlite3.Connection]:
    if path.exists() and not path.stat().st_size and _log_size(path):
        # SQLite would treat it as new and delete the log, which has every row
        raise damaged_file(path)
    with explain_errors(path):
        return closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS))


def _check_kind(path: Path) -> None:
    """Refuse what is not a regular file: SQLite would wait for a pipe and follow circular links forever."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}); choose another output folder") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"{path} is {kind}, where a whichtoken results file should be; choose another output folder")


def _check_writable(path: Path) -> None:
    """Respect write protection by mode bits, which do not stop the superuser."""
    for item in (path, path.parent):
        if item.exists() and not (item.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)):
            raise UsageError(f"{item} is read-only; make it writable or choose another output folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written by this user; choose another output folder")
    # SQLite keeps a log and a lock beside each name, and they would differ
    if path.exists() and path.stat().st_nlink > 1:
        raise UsageError(
            f"{path} has another name (a hard link), under which it would change too; write to a copy of it"
        )


def _log_size(path: Path) -> int:
    """Size of the log, whose contents SQLite has not yet moved into the file."""
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _plain(sql: str) -> str:
    return re.sub(r"\s+", "", sql)


FAILED_PREDICTION = "prediction: "  # start of the message of a row that stands for a failed prediction


class Ledger:
    """Rows, predictions, runs and their verdicts in one file.

    Use `Ledger.writing(path)` or `Ledger.reading(path)`. A driver checks the whole file before it writes; a reader
    checks the tables that it reads, each once.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, verified: Iterable[str] = ()) -> None:
        self.path = path
        self._connection = connection
        self._verified = set(verified)
        # rows go to the file that was opened, even if its name leads elsewhere by now: the file and its log are watched
        names = (os.path.abspath(path), f"{os.path.realpath(path)}-wal")
        self._files = {name: _identity(name) for name in names}
        self._written: dict[str, dict[tuple[Any, ...], int]] = {"rows": {}, "predictions": {}}  # checksums by key

    @classmethod
    @contextmanager
    def writing(cls, path: Path) -> Iterator[Ledger]:
        """Open for the one driver that writes; creates the file where there is none."""
        _check_kind(path)
        _check_writable(path)
        with _driver_lock(path), _connect(path) as connection:
            with explain_errors(path):
                if _is_new(connection):
                    # the mode first: it cannot change inside a transaction
                    connection.executescript(f"PRAGMA journal_mode=WAL; {_creation()}")
                check_schema(path, connection)
                for name in TABLES:
                    verify(path, connection, name)
                # survives kill -9 of the driver without an fsync per row
                connection.execute("PRAGMA synchronous=NORMAL")
            ledger = cls(path, connection, TABLES)
            yield ledger
            ledger._check_stored()

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[Ledger]:
        """Open an existing ledger for reading."""
        with open_to_read(path) as connection:
            with explain_errors(path):
                check_schema(path, connection)
            yield cls(path, connection)

    def put(self, version: int, task: RunTask, row: Row[Any]) -> None:
        """Store one finished row in its own transaction."""
        values = (row.status, row.message, canonical_json(row.measured), float(row.seconds), row.package_version)
        self._insert("rows", (task.experiment, version, task.point, task.seed, *values))

    def put_prediction(
        self, version: int, task: RunTask, predicted: Mapping[str, Predicted], message: str = ""
    ) -> None:
        """Store the prediction of one point, or the message why there is none."""
        text = canonical_json({name: asdict(item) for name, item in predicted.items()})
        self._insert("predictions", (task.experiment, version, task.point, text, message))

    def put_run(self, run: RunSummary) -> None:
        """Remember that this run was asked for; the latest of its kind stays."""
        self._insert("runs", (*run.key, run.started))

    def put_verdicts(self, run: RunSummary) -> None:
        """Store the verdicts of a run, so that listing it judges nothing."""
        verdicts = canonical_json([asdict(verdict) for verdict in run.verdicts])
        self._insert("verdicts", (*run.key, run.judged, run.version, verdicts, run.fault, run.package_version))

    def forget_verdicts(self, experiment: str) -> None:
        """Delete the verdicts of an experiment, whose rows are about to be replaced."""
        with explain_errors(self.path), self._connection:
            self._connection.execute("DELETE FROM verdicts WHERE experiment=?", (born_names(experiment).id,))

    def rows(self, plan: RunPlan) -> dict[RunTask, Row[Any]]:
        """The stored rows of a plan, with their predictions, in the order of the plan.

        A failed prediction is appended as a failed row of its own, whose task has no seed.
        """
        key = {"experiment": plan.experiment.id, "version": plan.experiment.version}
        predicted: dict[str, dict[str, Predicted]] = {}
        faults: dict[RunTask, Row[Any]] = {}
        for _, _, point, items, message in self._select("predictions", key):
            predicted[point] = self._predictions(items)
            if message and point in plan.points:
                task = RunTask(plan.experiment.id, point, None)
                faults[task] = Row(plan.points[point], 0, "failed", FAILED_PREDICTION + message, {}, 0.0, __version__)
        stored: dict[RunTask, Row[Any]] = {}
        for _, _, point, seed, status, message, measured, seconds, package in self._select("rows", key):
            if status not in ("ok", "failed"):
                raise wrong_value(self.path, "rows", "status")
            if point in plan.points:
                stored[RunTask(plan.experiment.id, point, seed)] = Row(
                    plan.points[point], seed, status, message, measured, seconds, package, predicted.get(point, {})
                )
        return {**{task: stored[task] for task in plan.tasks if task in stored}, **faults}

    def predicted_points(self, experiment: str, version: int) -> set[str]:
        """Points whose prediction is stored."""
        return {row[2] for row in self._select("predictions", {"experiment": experiment, "version": version})}

    def runs(self) -> list[RunSummary]:
        """All runs with their verdicts, the latest first."""
        judged = {}
        for *run, started, version, verdicts, fault, package in self._select("verdicts"):
            if not all(isinstance(item, dict) and {"code", "state"} <= item.keys() for item in verdicts):
                raise wrong_value(self.path, "verdicts", "verdicts")
            known = readable_verdicts(verdicts)
            odd = len(verdicts) - len(known)
            fault = fault or (f"{odd} of its verdicts cannot be read; run it again" if odd else "")
            judged[canonical_json(run)] = (started, version, known, fault, package)
        found = []
        for *run, started in self._select("runs"):
            experiment, preset, overrides, seeds = run
            if not all(isinstance(values, list) for values in overrides.values()):
                raise wrong_value(self.path, "runs", "overrides")
            verdicts = judged.get(canonical_json(run), ())
            found.append(RunSummary(experiment, preset, overrides, seeds or None, started, *verdicts))
        return sorted(found, key=lambda run: run.started, reverse=True)

    def records(self, experiments: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Every stored row of the experiments as flat data, for export."""
        for experiment in experiments:
            predictions = {}
            for _, version, point, items, _ in self._select("predictions", {"experiment": experiment}):
                self._predictions(items)
                predictions[version, point] = items
            for values in self._select("rows", {"experiment": experiment}):
                row = dict(zip(TABLES["rows"].columns, values, strict=True))
                row["predicted"] = predictions.get((row["version"], row["point"]), {})
                yield {**row, "point": parse_value(self.path, "rows", "point", dict, row["point"])}

    def _predictions(self, items: Mapping[str, Any]) -> dict[str, Predicted]:
        for item in items.values():
            if not isinstance(item, dict) or item.keys() != {"value", "error"} or type(item["error"]) is not float:
                raise wrong_value(self.path, "predictions", "predicted")
        return {name: Predicted(**item) for name, item in items.items()}

    def _insert(self, table: str, values: tuple[Any, ...]) -> None:
        values = translate(table, values, born_names(values[0]))
        # a lone surrogate, as in a message about a file name, cannot be encoded in UTF-8
        values = tuple(v.encode(errors="backslashreplace").decode() if isinstance(v, str) else v for v in values)
        marks = ",".join("?" * (len(values) + 1))
        with explain_errors(self.path), self._connection:
            self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, checksum(values)))
        self._check_in_place()
        if table in self._written:
            self._written[table][values[: TABLES[table].key]] = checksum(values)

    def _check_in_place(self) -> None:
        """Raise if the file was deleted, moved or replaced: its rows would be lost without an error."""
        if any(file is not None and file != _identity(name) for name, file in self._files.items()):
            raise file_gone(self.path)

    def _check_stored(self) -> None:
        """Check that a new reader of the file finds every row that was written."""
        self._check_in_place()
        with open_to_read(self.path) as connection, explain_errors(self.path):
            for table, written in self._written.items():
                columns = ", ".join([*TABLES[table].columns][: TABLES[table].key])
                found = connection.execute(f"SELECT {columns}, checksum FROM {table}")
                if not written.items() <= {tuple(key): stored for *key, stored in found}.items():
                    raise file_gone(self.path)

    def _select(self, table: str, where: Mapping[str, Any] | None = None) -> Iterator[list[Any]]:
        """Decoded rows of a table; the first call checks that the table is as it was written."""
        where = dict(where or {})
        if "experiment" in where:
            where["experiment"] = born_names(where["experiment"]).id
        condition = " AND ".join(f"{column}=?" for column in where) or "1"
        with explain_errors(self.path):
            if table not in self._verified:
                verify(self.path, self._connection, table)
                self._verified.add(table)
            columns = TABLES[table].columns
            query = f"SELECT {', '.join(columns)} FROM {table} WHERE {condition}"
            for row in self._connection.execute(query, tuple(where.values())):
                values = zip(columns.items(), translate(table, row, current_names(row[0])), strict=True)
                yield [parse_value(self.path, table, column, kind, value) for (column, kind), value in values]
