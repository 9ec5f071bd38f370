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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from whichtoken.errors import UsageError
from whichtoken.files import cannot_write, write_text

JobState = Literal["waiting", "running", "finished", "failed", "cancelled", "interrupted"]
NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
MOST_LOG = 100_000  # characters of a log that are shown, the last ones


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
    result: Any = None
    page: str = ""  # where the result is shown, if that was not known before


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
        return JobRequest(**json.loads((self.path / "request.json").read_text(encoding="utf-8")))

    @property
    def end(self) -> JobEnd | None:
        """How it ended; None if it has not, or nobody could write it down."""
        try:
            return JobEnd(**json.loads((self.path / "end.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
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
            with (self.path / "progress.jsonl").open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # still being written
                    offset += len(line)
                    yield offset, json.loads(line)
        except (FileNotFoundError, ValueError):
            return

    @property
    def log(self) -> str:
        """What its process printed, at most the end of it."""
        try:
            with (self.path / "log.txt").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MOST_LOG))
                return file.read().decode(errors="replace")
        except OSError:
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

    @property
    def pid(self) -> int | None:
        """The process that works on it; None where none does."""
        try:
            return int((self.path / "pid").read_text()) if self.is_alive else None
        except (OSError, ValueError):
            return None


def known_jobs(home: Path) -> dict[str, JobFolder]:
    """All jobs of a home, the latest first."""
    try:
        names = sorted((entry.name for entry in home.iterdir() if NAME.fullmatch(entry.name)), reverse=True)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{home} cannot be read: {(error.strerror or '').lower()}") from error
    return {name: JobFolder(home / name) for name in names if (home / name / "request.json").is_file()}
