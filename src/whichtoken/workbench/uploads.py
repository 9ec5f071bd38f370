"""Files that a user hands over: checked, and kept in a private folder that goes when the server stops."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

from starlette.datastructures import UploadFile

from whichtoken.errors import UsageError
from whichtoken.files import cannot_write
from whichtoken.workbench.settings import LARGEST_UPLOAD, MOST_UPLOADS

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")


class Uploads:
    """The private folder of one workbench."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    async def take(self, file: object, kinds: tuple[str, ...] = TABLES) -> Path:
        """Store an uploaded file under a name of ours, and return its place."""
        if not isinstance(file, UploadFile) or not file.filename:
            raise UsageError(f"choose a file first; it may be {' or '.join(kinds)}")
        suffix = Path(file.filename).suffix.lower()
        if suffix not in kinds:
            raise UsageError(f"{Path(file.filename).name[:80]} is not {' or '.join(kinds)}; save it as one of these")
        content = await file.read(LARGEST_UPLOAD + 1)
        if not content:
            raise UsageError(f"{Path(file.filename).name[:80]} is empty; choose another file")
        return self.keep(content, suffix)

    def keep(self, content: bytes, suffix: str) -> Path:
        """Store bytes as a file, whose name nobody can guess."""
        folder = self.folder()
        if sum(1 for _ in folder.iterdir()) >= MOST_UPLOADS:
            oldest = min(folder.iterdir(), key=lambda path: path.stat().st_mtime)
            oldest.unlink()
        path = folder / f"{secrets.token_hex(8)}{suffix}"
        try:
            path.write_bytes(content)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, error) from error
        return path

    def find(self, name: str, kinds: tuple[str, ...] = TABLES) -> Path:
        """A file that was handed over before."""
        path = self.folder() / name
        if Path(name).name != name or path.suffix not in kinds or not path.is_file():
            raise UsageError("this file is no longer here; hand it over again")
        return path

    def folder(self) -> Path:
        """The folder, which only this user can read."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="whichtoken-"))
        return self._folder

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
