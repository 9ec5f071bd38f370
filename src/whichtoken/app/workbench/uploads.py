"""Uploaded files: checked, and kept in a private folder that is deleted when the server stops."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from whichtoken.app.workbench.settings import LARGEST_UPLOAD, MOST_UPLOADS
from whichtoken.errors import UsageError
from whichtoken.files import cannot_write, writing

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
NAME = re.compile(r"[0-9a-f]{16}\.[a-z]{3,7}")


def uploads_of(request: Request) -> Uploads:
    """The uploads of this workbench."""
    found: Uploads = request.app.state.uploads
    return found


class Uploads:
    """The private folder of one workbench."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @asynccontextmanager
    async def form(self, request: Request) -> AsyncIterator[FormData]:
        """The form of a request with at most one file; a disk that cannot be written is a `UsageError`."""
        # starlette writes large files to the temporary folder
        await run_in_threadpool(self.folder)
        with writing("the file"):
            async with request.form(max_files=1, max_fields=10, max_part_size=5_000_000) as form:
                yield form

    async def take(self, file: object, kinds: tuple[str, ...] = TABLES) -> Path:
        """Store an uploaded file under a new name, and return its path."""
        if not isinstance(file, UploadFile) or not file.filename:
            raise UsageError(f"choose a file first; it may be {' or '.join(kinds)}", file="")
        suffix, name = Path(file.filename).suffix.lower(), Path(file.filename).name[:80]
        if suffix not in kinds:
            raise UsageError(f"{name} is not {' or '.join(kinds)}; save it as one of these", file=name)
        content = await file.read(LARGEST_UPLOAD + 1)
        if not content:
            raise UsageError(f"{name} is empty; choose another file", file=name)
        return await run_in_threadpool(self.keep, content, suffix)

    def keep(self, content: bytes, suffix: str) -> Path:
        """Store bytes as a file with a random name."""
        path = self.folder() / f"{secrets.token_hex(8)}{suffix}"
        try:
            kept = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
            for oldest in kept[: max(0, len(kept) + 1 - MOST_UPLOADS)]:
                oldest.unlink()
            path.write_bytes(content)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise cannot_write(path, error) from error
        return path

    def find(self, name: str, kinds: tuple[str, ...] = TABLES) -> Path:
        """A file that was uploaded before."""
        path = self.folder() / name if NAME.fullmatch(name) else None
        if path is None or path.suffix not in kinds or not path.is_file():
            raise UsageError("this file is no longer stored; upload it again")
        return path

    def folder(self) -> Path:
        """The folder, which only this user can read; a new one if it was deleted."""
        if self._folder is None or not _is_private(self._folder):
            try:
                # Python remembers the temporary folder; let it look for one again
                if not os.path.isdir(tempfile.gettempdir()):
                    tempfile.tempdir = None
                self._folder = Path(tempfile.mkdtemp(prefix="whichtoken-"))
            except OSError as error:
                raise cannot_write(Path(tempfile.tempdir or "the temporary folder"), error) from error
        return self._folder

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    """Whether the folder exists and only this user can access it; another user may have created it anew."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
