"""A fitted estimator as a folder: `model.json`, and beside it the arrays in a file that is named by their checksum.

The JSON carries the format version, the checksum of the arrays and one of itself. Neither file can hold code, so loading
runs none, and no file is opened because the JSON names it. Saving again writes the new arrays beside the old ones; the
model changes at one moment, when `model.json` is replaced. Whoever dies before has the old model, afterwards the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken import __version__
from whichtoken.data.reading import JSON_VALUE, check_fits, parse_json, readable, reason, shown
from whichtoken.errors import UsageError
from whichtoken.files import cannot_write, replacing, write_text

FORMAT = "whichtoken-model"
VERSION = 2  # raise it when an older program could not read what this one writes
DESCRIPTION = "model.json"
OURS = re.compile(r"\.?model[-\w]*\.(json|html|safetensors)")  # also what an interrupted save leaves
CHECKSUM = re.compile(r"[0-9a-f]{64}")
Tensors = dict[str, NDArray[Any]]


def save_model(
    folder: str | Path, kind: str, parameters: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a model folder, whole or not at all, with a card that says what it holds.

    Parameters
    ----------
    folder : path
        A new or empty folder, or a model folder, which is replaced; anything else is refused.
    kind : str
        What the model is, such as "bag-classifier".
    parameters : mapping
        Whatever JSON can hold; numpy scalars become numbers.
    tensors : mapping of name to array
    """
    from safetensors.numpy import save

    from whichtoken.estimators.model_card import first_card, write_card

    target = Path(folder).absolute()
    check_writable(target)
    arrays = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    description = {
        "format": FORMAT,
        "version": VERSION,
        "package_version": __version__,
        "kind": kind,
        "tensors_sha256": hashlib.sha256(arrays).hexdigest(),
        "parameters": dict(parameters),
    }
    plain = json.loads(json.dumps(description, allow_nan=False, default=_plain))
    text = json.dumps({**plain, "sha256": description_checksum(plain)}, indent=1, ensure_ascii=False)
    with _alone(target):
        tensors_file = target / tensors_name(plain["tensors_sha256"])
        with replacing(tensors_file) as fresh:
            fresh.write_bytes(arrays)
        write_text(target / DESCRIPTION, text)
        for other in target.iterdir():
            if OURS.fullmatch(other.name) and other.name not in (DESCRIPTION, tensors_file.name):
                with suppress(OSError):  # a file too many does no harm
                    other.unlink()
        try:
            write_card(target, first_card(kind, plain["parameters"], plain["tensors_sha256"]))
        except UsageError as error:  # the model is whole without it
            warnings.warn(f"the model is saved, but not its card: {error}", stacklevel=2)


def describe_table(folder: str | Path, table: Mapping[str, Any]) -> None:
    """Add to a saved model how the columns of a table become its numbers, all at once."""
    place = Path(folder)
    description = {**_description(place), "table": dict(table)}
    text = json.dumps({**description, "sha256": description_checksum(description)}, indent=1, ensure_ascii=False)
    with _alone(place.absolute()):
        write_text(place / DESCRIPTION, text)


@dataclass(frozen=True, eq=False)
class OpenedFolder:
    """A model folder that was read: whoever asks for its kind first need not open it again."""

    folder: Path
    kind: str
    parameters: dict[str, Any]
    tensors: Tensors
    table: Any = None  # how the columns of a table become its numbers, where `describe_table` said so

    def __str__(self) -> str:
        return str(self.folder)


def read_folder(folder: str | Path) -> OpenedFolder:
    """Kind, parameters and arrays of a model folder, checked against their checksums."""
    place = Path(folder)
    description = _description(place)
    try:
        tensors = _tensors(place, description["tensors_sha256"])
    except UsageError:
        again = _description(place)
        if again["tensors_sha256"] == description["tensors_sha256"]:
            raise
        description, tensors = again, _tensors(place, again["tensors_sha256"])  # it was saved anew meanwhile
    return OpenedFolder(place, description["kind"], description["parameters"], tensors, description.get("table"))


def load_model(folder: str | Path | OpenedFolder, kind: str | None = None) -> tuple[str, dict[str, Any], Tensors]:
    """Kind, parameters and arrays of a model folder; `kind`, where given, is the one that is accepted."""
    opened = folder if isinstance(folder, OpenedFolder) else read_folder(folder)
    if kind is not None and opened.kind != kind:
        raise UsageError(f"{shown(opened.folder)} holds a {shown(opened.kind)}, not a {kind}")
    return opened.kind, opened.parameters, opened.tensors


def check_writable(folder: str | Path) -> None:
    """Refuse a place where a model folder would overwrite something else; call it before a long fit."""
    target = Path(folder)
    if not target.exists():
        above = next(place for place in target.absolute().parents if place.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UsageError(
                f"model folder {shown(folder)} cannot be written: {shown(above)} does not allow new folders"
            )
        return
    if not target.is_dir():
        raise UsageError(f"{shown(folder)} is a file; a model needs a folder of its own")
    if not os.access(target, os.W_OK):
        raise UsageError(f"model folder {shown(folder)} cannot be written: permission denied")
    others = sorted(path.name for path in target.iterdir() if not OURS.fullmatch(path.name))
    if others:
        raise UsageError(f"{shown(folder)} is not a model folder (it holds '{shown(others[0])}'); choose a new one")
    if (target / DESCRIPTION).exists() or (target / DESCRIPTION).is_symlink():
        _parsed(target)  # raises unless it is ours, of whatever version


def description_checksum(description: Mapping[str, Any]) -> str:
    """Of everything in a description but its own checksum, however it is laid out."""
    content = {name: value for name, value in description.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tensors_name(tensors_sha256: str) -> str:
    """The file of the arrays with this checksum."""
    return f"model-{tensors_sha256[:16]}.safetensors"


def _parsed(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, if it is one of ours."""
    if not folder.is_dir():
        raise UsageError(
            f"{shown(folder)} is not a model folder: {'a file' if folder.exists() else 'it does not exist'}"
        )
    if not (folder / DESCRIPTION).exists() and not (folder / DESCRIPTION).is_symlink():
        raise UsageError(f"{shown(folder)} is not a model folder: it has no {DESCRIPTION}")
    with readable(folder / DESCRIPTION, "JSON"):
        description = parse_json(_content(folder / DESCRIPTION, JSON_VALUE).decode())
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UsageError(f"{shown(folder)} is not a model folder: {DESCRIPTION} is not one of whichtoken's")
    return description


def _description(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, of this version and as it was written."""
    description = _parsed(folder)
    version = description.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"{shown(folder)} was written by a newer version (format {version}, this program knows {VERSION});"
            " upgrade whichtoken"
        )
    if type(version) is int and version < 1:
        raise UsageError(f"{shown(folder)}: format {version} does not exist; {DESCRIPTION} was changed or damaged")
    if version == 1:
        raise UsageError(f"{shown(folder)} has the format of a version before the first release; fit the model again")
    with readable(folder / DESCRIPTION, "a model"):
        intact = description.get("sha256") == description_checksum(description)
    if not intact:
        raise UsageError(
            f"{shown(folder)}: {DESCRIPTION} does not match its checksum; it was changed or damaged, fit the model again"
        )
    fields = {"version": int, "kind": str, "tensors_sha256": str, "parameters": dict}
    for field, type_ in fields.items():
        if not isinstance(description.get(field), type_):
            raise UsageError(f"{shown(folder)}: {DESCRIPTION} has no valid '{field}'; it was changed or damaged")
    if not CHECKSUM.fullmatch(description["tensors_sha256"]):
        raise UsageError(f"{shown(folder)}: {DESCRIPTION} has no valid 'tensors_sha256'; it was changed or damaged")
    return description


def _tensors(folder: Path, sha256: str) -> Tensors:
    from safetensors.numpy import load

    file = folder / tensors_name(sha256)
    with readable(file, "safetensors"):
        arrays = _content(file)
        if hashlib.sha256(arrays).hexdigest() != sha256:
            raise UsageError(
                f"{shown(folder)}: {file.name} does not match the checksum in {DESCRIPTION}; it was changed or damaged,"
                " fit the model again"
            )
        try:
            return load(arrays)
        except KeyError as error:
            raise ValueError(f"numbers of the type {reason(error)} are not known") from error


def _content(file: Path, expansion: int = 2) -> bytes:
    """The bytes of a regular file that lies in its folder itself: links may lead anywhere."""
    if file.is_symlink():
        raise UsageError(f"{shown(file)} is a link; a model folder holds its own files")
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{shown(file)} is not a regular file")
        check_fits(file, expansion * found.st_size)
        return opened.read(found.st_size)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Make the folder, and keep others from saving into it at the same time; a new one vanishes if the block fails."""
    try:
        new = [place for place in (target, *target.parents) if not place.exists()]
        target.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(f"model folder {shown(target)}", error) from error
    try:
        with suppress(ImportError, OSError):  # not every system and file system has locks
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    except BaseException:
        for place in new:
            with suppress(OSError):
                if place == target and not (target / DESCRIPTION).exists():
                    for part in target.iterdir():
                        part.unlink()
                place.rmdir()
        raise
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"parameters must be JSON; got {value!r} of type {type(value).__name__}")
