"""The file behind the ledger: what it looks like, how it is opened, checked and brought up to date.

Whatever can be wrong with it ends in one sentence and leaves it as it was.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError
from whichtoken.files import replacing

OLDEST, SCHEMA = 1, 2  # schemas that this program reads; it writes the newer
APPLICATION = 0x77686963  # "whic": tells a ledger from any other SQLite file
BUSY_SECONDS = 3.0
SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL", dict: "TEXT", list: "TEXT"}  # the last two as JSON


@dataclass(frozen=True)
class Table:
    """One table: its columns, how many of them are its key, and the schema that brought it."""

    columns: dict[str, type]
    key: int
    since: int

    def definition(self, name: str) -> str:
        columns = ", ".join(f"{column} {SQL_TYPES[kind]}" for column, kind in self.columns.items())
        key = ", ".join(list(self.columns)[: self.key])
        return f"CREATE TABLE {name} ({columns}, checksum INTEGER, PRIMARY KEY ({key})) WITHOUT ROWID"


CLAIM = {"experiment": str, "version": int}
RUN = {"experiment": str, "preset": str, "overrides": dict, "seeds": int}
TABLES = {
    "rows": Table(
        {**CLAIM, "point": str, "seed": int, "status": str, "message": str, "measured": dict, "seconds": float,
         "package_version": str}, key=4, since=1,
    ),
    "predictions": Table({**CLAIM, "point": str, "predicted": dict, "message": str}, key=3, since=1),
    "runs": Table({**RUN, "started": str}, key=4, since=1),
    "verdicts": Table(
        {**RUN, "started": str, "version": int, "verdicts": list, "fault": str, "package_version": str}, key=4, since=2
    ),
}  # fmt: skip


def checksum(values: tuple[Any, ...]) -> int:
    """What is stored beside a row: SQLite itself does not notice a flipped byte inside a value."""
    return zlib.crc32(repr(values).encode(errors="backslashreplace"))


@contextmanager
def opened_to_write(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for the one driver that writes; makes the file, or brings one of an older schema up to date."""
    _check_kind(path)
    _check_writable(path)
    # links to one file share its lock
    with _driver_lock(path, Path(os.path.realpath(path))), _connected(path) as connection:
        with one_sentence(path):
            if _is_new(connection):
                # the mode first: it cannot change inside a transaction
                connection.executescript(f"PRAGMA journal_mode=WAL; {_transaction(0)}")
            schema = check_schema(path, connection)
            for name in tables_of(schema):
                verify(path, connection, name)
            if schema < SCHEMA:
                _migrate(path, connection, schema)
            connection.execute("PRAGMA synchronous=NORMAL")  # outlives kill -9 of the driver, without an fsync per row
        yield connection


@contextmanager
def opened_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to look with, also while a driver writes, where nothing may be written, or at an older schema."""
    _check_kind(path)
    if not path.is_file():
        raise UsageError(f"no results in {path.parent}: {path.name} is missing; run 'whichtoken reproduce' first")
    # rows of a killed driver wait in the log, which `immutable` would pass over
    mode = "mode=ro" if _log_size(path) or os.access(path.parent, os.W_OK) else "immutable=1"
    with _connected(path, mode) as connection:
        yield connection


class FilePlace:
    """Where the file of an open connection is: rows go to the file that was opened, wherever it is by now.

    Without a look at its name, a run whose file was deleted, moved or replaced would end well, and nothing would be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = [os.path.abspath(path), f"{os.path.realpath(path)}-wal"]  # the rows, and those on their way there
        self._files = [_identity(name) for name in self._names]

    def check(self) -> None:
        """Refuse to go on if the names no longer lead to the files that are open."""
        for name, file in zip(self._names, self._files, strict=True):
            if file is not None and file != _identity(name):
                raise gone(self.path)


def gone(path: Path) -> UsageError:
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


def tables_of(schema: int) -> list[str]:
    return [name for name, table in TABLES.items() if table.since <= schema]


def check_schema(path: Path, connection: sqlite3.Connection) -> int:
    """The schema of a file that is ours and not newer than this program."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise UsageError(f"{path} is not a whichtoken results file; choose another --out")
    schema = _pragma(connection, "user_version")
    if schema > SCHEMA:
        raise UsageError(
            f"{path} was written by a newer version (schema {schema}, this program knows {SCHEMA}); "
            "upgrade whichtoken or choose another --out"
        )
    if schema < OLDEST:
        raise UsageError(
            f"{path} says that it has schema {schema}, and this program reads {OLDEST} to {SCHEMA}; "
            "move it away (nothing was changed in it) or choose another --out"
        )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type='table'"))
    for name in tables_of(schema):
        if _plain(found.get(name) or "") != _plain(TABLES[name].definition(name)):
            raise damaged(path)
    return schema


def verify(path: Path, connection: sqlite3.Connection, name: str) -> None:
    """Refuse a table whose pages or rows are not as they were written.

    Every row is looked at: a byte flipped inside a key, or a page in another's place, would hide rows from every query.
    Pages that got lost are found in the whole file only, which is too long for a list of runs and due for their rows.
    """
    part = "" if name in ("rows", "predictions") else f"({name})"
    if connection.execute(f"PRAGMA quick_check{part}").fetchone()[0] != "ok":
        raise damaged(path)
    table, last = TABLES[name], None
    for *values, stored in connection.execute(f"SELECT {', '.join(table.columns)}, checksum FROM {name}"):
        if stored != checksum(tuple(values)):
            raise damaged(path)
        key = tuple(values[: table.key])
        for (column, kind), value in zip(table.columns.items(), key, strict=False):
            if type(value) is not (str if kind is dict else kind):
                raise wrong_value(path, name, column)
        if last is not None and key <= last:
            raise damaged(path)
        last = key


def decoded(path: Path, name: str, values: tuple[Any, ...]) -> list[Any]:
    """The values of one row in the types of their columns, JSON read; one of another kind is refused."""
    row = []
    for (column, kind), value in zip(TABLES[name].columns.items(), values, strict=True):
        try:
            item = json.loads(value, parse_constant=_refuse) if kind in (dict, list) else value
        except (TypeError, ValueError, RecursionError) as error:
            raise wrong_value(path, name, column) from error
        if type(item) is not kind:
            raise wrong_value(path, name, column)
        row.append(item)
    return row


def wrong_value(path: Path, table: str, column: str) -> UsageError:
    return UsageError(
        f"{path} has a value of the wrong kind in {table}.{column}, which this program never writes; "
        "move the file away (nothing was changed in it) or choose another --out"
    )


def damaged(path: Path) -> UsageError:
    return UsageError(
        f"{path} is damaged; move it away (nothing was changed in it) or choose another --out, then run again"
    )


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file into what the user can do; a failing disk is not a damaged file."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, json.JSONDecodeError, OverflowError) as error:
        raise _sentence(path, error) from error
    except MemoryError as error:
        raise UsageError(f"{path} needs more memory than is free; close other programs and run again") from error


def _sentence(path: Path, error: Exception) -> UsageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file ends before its own pages do
        return damaged(path)
    match code & 0xFF:  # the rest is detail
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return UsageError(f"{path} is locked by another program; close it or choose another --out")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return UsageError(f"{path} cannot be opened for writing ({error}); choose another --out")
        case sqlite3.SQLITE_FULL:
            return UsageError(f"no space left for {path}; finished rows are kept, free some space and run again")
        case sqlite3.SQLITE_IOERR:
            return UsageError(
                f"{path}: the system could not read or write it ({error}, {error.sqlite_errorname}); "  # type: ignore[attr-defined]
                "finished rows are kept; check the disk, your quota and the limit on the size of files, then run again"
            )
    return damaged(path)


def _is_new(connection: sqlite3.Connection) -> bool:
    """Whether nothing is in the file yet, nor a mark of another program."""
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return empty and _pragma(connection, "application_id") == 0 == _pragma(connection, "user_version")


def _transaction(schema: int) -> str:
    """What takes a file from this schema (0: nothing) to the present one, all of it or nothing."""
    made = "; ".join(table.definition(name) for name, table in TABLES.items() if table.since > schema)
    return f"BEGIN IMMEDIATE; {made}; PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA}; COMMIT;"


def _migrate(path: Path, connection: sqlite3.Connection, schema: int) -> None:
    """Bring the file up to date, and leave it as it was beside, for a program that does not know the new schema."""
    names = (f"{path.stem}-schema-{schema}{'' if n == 1 else f'-{n}'}{path.suffix}" for n in count(1))
    backup = next(place for name in names if not (place := path.with_name(name)).exists())
    with replacing(backup) as fresh, closing(sqlite3.connect(fresh)) as copy:
        connection.backup(copy)
    connection.executescript(_transaction(schema))


@contextmanager
def _driver_lock(path: Path, target: Path) -> Iterator[None]:
    """Mark the one driver by a lock file: readers may look at any time, a second driver may not start."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{target}.lock", timeout=0)
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
        raise damaged(path)  # SQLite would take it for new and delete the log, which has every row
    with one_sentence(path):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def _check_kind(path: Path) -> None:
    """Refuse what is no file: SQLite would wait for a pipe, and run in circles with links."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}); choose another --out") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"{path} is {kind}, where a whichtoken results file should be; choose another --out")


def _check_writable(path: Path) -> None:
    """Respect write protection by its mode bits, which the superuser's own writes would ignore."""
    for item in (path, path.parent):
        if item.exists() and not (item.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)):
            raise UsageError(f"{item} is read-only; make it writable or choose another --out")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written by this user; choose another --out")
    if path.exists() and path.stat().st_nlink > 1:  # SQLite keeps a log and a lock beside each name: they would differ
        raise UsageError(
            f"{path} has another name (a hard link), under which it would change too; write to a copy of it"
        )


def _log_size(path: Path) -> int:
    """Bytes that SQLite has not yet moved into the file."""
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _plain(sql: str) -> str:
    return re.sub(r"\s+", "", sql)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
