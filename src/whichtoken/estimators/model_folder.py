"""A fitted estimator as a folder: `model.safetensors` for its arrays, `model.json` for everything else.

The JSON carries the format version and the checksum of the arrays. Neither file can hold code, so loading runs none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken import __version__
from whichtoken.errors import UsageError

FORMAT = "whichtoken-model"
VERSION = 1  # raise it when an older program could not read what this one writes
DESCRIPTION, TENSORS = "model.json", "model.safetensors"


def save_model(
    folder: str | Path, kind: str, parameters: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a model folder, whole or not at all.

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
    text = json.dumps(description, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UsageError(f"model folder {folder} cannot be written: {error.strerror}") from error
    try:
        fresh.chmod(0o777 & ~_umask())  # mkdtemp makes folders that only their owner can read
        (fresh / TENSORS).write_bytes(arrays)
        (fresh / DESCRIPTION).write_text(text, encoding="utf-8")
        _put_in_place(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def load_model(folder: str | Path, kind: str | None = None) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """Kind, parameters and arrays of a model folder; `kind`, where given, is the one that is accepted."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    description = _description(Path(folder))
    if description["version"] > VERSION:
        raise UsageError(
            f"{folder} was written by a newer version (format {description['version']}, this program knows {VERSION});"
            " upgrade whichtoken"
        )
    if kind is not None and description["kind"] != kind:
        raise UsageError(f"{folder} holds a {description['kind']}, not a {kind}")
    try:
        arrays = (Path(folder) / TENSORS).read_bytes()
    except OSError as error:
        raise UsageError(f"{folder} has no readable {TENSORS}: {error.strerror}") from error
    if hashlib.sha256(arrays).hexdigest() != description["tensors_sha256"]:
        raise UsageError(f"{folder}: {TENSORS} does not match the checksum in {DESCRIPTION}; it was changed or damaged")
    try:
        return description["kind"], description["parameters"], load(arrays)
    except SafetensorError as error:
        raise UsageError(f"{folder}: {TENSORS} cannot be read: {error}") from error


def check_writable(folder: str | Path) -> None:
    """Refuse a place where a model folder would overwrite something else; call it before a long fit."""
    target = Path(folder)
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{folder} is a file; a model needs a folder of its own")
    others = sorted({path.name for path in target.iterdir()} - {DESCRIPTION, TENSORS})
    if others:
        raise UsageError(f"{folder} is not a model folder (it holds '{others[0]}'); choose a new one")
    if any(target.iterdir()):
        _description(target)  # raises unless it is ours


def classes_as_json(classes: NDArray[Any]) -> dict[str, Any]:
    """Class labels with their dtype, for `parameters`."""
    return {"dtype": classes.dtype.str if classes.dtype != object else "object", "values": classes.tolist()}


def classes_from_json(stored: Mapping[str, Any]) -> NDArray[Any]:
    """The array that `classes_as_json` described."""
    return np.array(stored["values"], dtype=stored["dtype"])


@contextmanager
def stored_fields(folder: str | Path) -> Iterator[None]:
    """Say in a sentence that a field of the JSON or an array is missing or strange, while a model is put together."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder} is damaged: {DESCRIPTION} or {TENSORS} is not complete ({error!r})") from error


def _description(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked for the fields that every version has."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a model folder: {'a file' if folder.exists() else 'it is not there'}")
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{folder} is not a model folder: no readable {DESCRIPTION}") from error
    except ValueError as error:
        raise UsageError(f"{folder}: {DESCRIPTION} is not JSON: {error}") from error
    fields = {"version": int, "kind": str, "tensors_sha256": str, "parameters": dict}
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UsageError(f"{folder} is not a model folder: {DESCRIPTION} is not one of whichtoken's")
    for field, type_ in fields.items():
        if not isinstance(description.get(field), type_):
            raise UsageError(f"{folder}: {DESCRIPTION} has no valid '{field}'; it was changed or damaged")
    return description


def _put_in_place(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target`; an older model is moved aside first and comes back if that fails."""
    if not target.exists() or not any(target.iterdir()):
        fresh.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent)) / target.name
    target.rename(aside)
    try:
        fresh.rename(target)
    except OSError:
        aside.rename(target)
        raise
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"parameters must be JSON; got {value!r} of type {type(value).__name__}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
