"""A job on disk: what was asked, how far it is, what it said, how it ended.

The files are all that the server and the job's process share, so either may stop and start again. A job holds a lock as
long as its process lives; whether it runs is thus known even to a server that did not start it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock, Timeout

from whichtoken.data.reading import check_regular, read_text, readable
from whichtoken.errors import UsageError
from whichtoken.files import cannot_write, write_text

JobState = Literal["waiting", "running", "finished", "failed", "cancelled", "interrupted"]
NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
OWN_PAGE = re.compile(r"(/[\w.-]+)+", re.ASCII)  # of this server, never another site or a script
MOST_LOG = 100_000  # characters of a log that are shown, the last ones
MOST_NEWS = 10_000  # lines of progress that are read at a time


@dataclass(frozen=True)
class JobRequest:
    """What was asked for."""

    kind: str  # which function runs it, see `job_process.KINDS`
    title: str
    arguments: dict[str, Any]
    created: str = ""
    page: str = ""  # where its result is shown


@dataclass(frozen=True)
class JobEnd:
    """How it ended."""

    state: JobState
    message: str = ""
    result: dict[str, Any] | None = None
    page: str = ""  # where the result is shown, if that was not known before


Record = TypeVar("Record", JobRequest, JobEnd)


class JobFolder:
    """The files of one job."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name

    @classmethod
    def new(cls, home: Path, request: JobRequest) -> JobFolder:
        """Write down what is asked, in a folder of its own."""
        now = datetime.now(UTC)
        path = home / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        job = cls(path)
        stamped = asdict(request) | {"created": now.isoformat(timespec="seconds")}
        write_text(path / "request.json", json.dumps(stamped, indent=1))
        return job

    @property
    def request(self) -> JobRequest:
        return _read(self.path / "request.json", JobRequest)

    @property
    def end(self) -> JobEnd | None:
        """How it ended; None if it has not, or nobody could write it down."""
        try:
            return _read(self.path / "end.json", JobEnd)
        except UsageError:
            return None

    def finish(self, end: JobEnd) -> None:
        write_text(self.path / "end.json", json.dumps(asdict(end), indent=1, allow_nan=False))

    def reopen(self) -> None:
        """Forget how it ended, because it goes on."""
        (self.path / "end.json").unlink(missing_ok=True)

    def say(self, news: dict[str, Any]) -> None:
        """Add a line of progress."""
        with (self.path / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(news, allow_nan=False) + "\n")

    def news(self, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Lines of progress behind a place in the file, each with the place after it."""
        try:
            check_regular(self.path / "progress.jsonl")
            with (self.path / "progress.jsonl").open("rb") as file:
                file.seek(offset)
                for line in islice(file, MOST_NEWS):
                    if not line.endswith(b"\n"):
                        return  # still being written
                    offset += len(line)
                    news = _plain(line)
                    if isinstance(news, dict):
                        yield offset, news
        except (OSError, UsageError):
            return

    @property
    def log(self) -> str:
        """What its process printed, at most the end of it."""
        try:
            check_regular(self.path / "log.txt")
            with (self.path / "log.txt").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MOST_LOG))
                return file.read(MOST_LOG).decode(errors="replace")
        except (OSError, UsageError):
            return ""

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Hold the lock that says that this process works on the job."""
        with FileLock(self.path / "alive.lock", timeout=10):
            (self.path / "pid").write_text(str(os.getpid()))
            yield

    @property
    def is_alive(self) -> bool:
        lock = self.path / "alive.lock"
        if not lock.exists():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # a folder that cannot be written: nothing works in it
            return False

    @property
    def pid(self) -> int | None:
        """The process that works on it; None where none does."""
        try:
            found = int(read_text(self.path / "pid")) if self.is_alive else 0
        except ValueError:
            return None
        return found if found > 1 else None  # others stand for groups of processes


def known_jobs(home: Path) -> dict[str, JobFolder]:
    """All jobs of a home, the latest first."""
    try:
        names = sorted((entry.name for entry in home.iterdir() if NAME.fullmatch(entry.name)), reverse=True)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{home} cannot be read: {(error.strerror or '').lower()}") from error
    return {name: JobFolder(home / name) for name in names if os.path.isfile(home / name / "request.json")}


def _read(path: Path, kind: type[Record]) -> Record:
    """A record as it was written; whatever else a file may hold is a `UsageError`."""
    with readable(path, "JSON"):
        value = json.loads(read_text(path))
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # no page can show what this refuses
        found: Record = _adapter(kind.__name__).validate_python(value)
        return replace(found, page=found.page if OWN_PAGE.fullmatch(found.page) else "")


def _plain(line: bytes) -> Any:
    """The value of a line; None where it is none that can be sent."""
    try:
        value = json.loads(line)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


@cache
def _adapter(kind: str) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter({"JobRequest": JobRequest, "JobEnd": JobEnd}[kind])
