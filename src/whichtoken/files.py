"""Files that are complete or absent: written under another name, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError

DEFAULT_FOLDER = Path("whichtoken-output")
LEDGER_NAME = "whichtoken-results.sqlite"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to, which is renamed to `path` when the block ends and deleted when it fails.

    A reader of `path` gets the old file or the new one, never half of one; a full disk costs only the new one. The file
    keeps its mode and its owner, and a link stays a link, whose target is replaced.
    """
    check_place(path)
    target = Path(os.path.realpath(path))
    # the suffix stays: many writers choose their format by it
    fresh = Path(tempfile.mktemp(prefix=f".{target.stem[:100]}-", suffix=target.suffix, dir=target.parent))
    try:
        old = target.stat() if target.exists() else None
        # the mode is set at the end; until then only the owner can read it
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if old is None else 0o600))
        yield fresh
        if old is not None:
            with suppress(PermissionError):  # another user's file in a folder that both may write
                os.chown(fresh, old.st_uid, old.st_gid)
            os.chmod(fresh, stat.S_IMODE(old.st_mode))
        _flush(fresh)
        os.replace(fresh, target)
        _flush(target.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            fresh.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a text file; if that fails, the old one is unchanged."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def check_place(path: str | Path) -> None:
    """Refuse a path where no file can be written; call it before the work whose result goes there."""
    target = Path(path)
    try:
        if target.is_dir():
            raise UsageError(f"{target} is a folder; name a file")
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise UsageError(f"{target} is not a regular file; choose another")
        folder = Path(os.path.realpath(target)).parent if target.is_symlink() else target.parent
        if not folder.is_dir():
            raise UsageError(f"{target} cannot be written: there is no folder {folder}")
        if os.path.islink(os.path.realpath(target)):
            raise UsageError(f"{target} is a link that leads in a circle; choose another")
        if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
            raise UsageError(f"{target} cannot be written: permission denied")
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"{target} cannot be written: {(error.strerror or str(error)).lower()}") from error


def cannot_write(path: str | Path, error: OSError) -> UsageError:
    """The error for a write that failed: what happened, and that nothing is lost."""
    return UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}; the old file is unchanged")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """A context in which an error of the system is that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def _flush(path: Path) -> None:
    """Write a file's content, or a folder's names, to the disk, so that a power cut loses nothing."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems refuse it for folders
            raise
    finally:
        os.close(handle)


def finite(value: Any) -> Any:
    """A value as JSON has it: null for infinity and NaN, lists for arrays."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()), parse_constant=lambda _: None)
