"""The state of a training run in one file: there only once it is whole, read without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import readable
from whichtoken.errors import UsageError


def save_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able facts; a kill at any moment leaves the old file or the new one.

    Arrays among the facts, such as the state of some generators, become lists.
    """
    from safetensors.numpy import save_file

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # safetensors writes the memory of an array as it lies, whatever its order
        rows = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(rows, part, metadata={"facts": json.dumps(facts, default=np.ndarray.tolist)})
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What `save_checkpoint` wrote."""
    from safetensors import safe_open

    with readable(path, "a checkpoint of a training run"), safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["facts"])
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


def restore(arrays: Mapping[str, NDArray[Any]], stored: Mapping[str, NDArray[Any]]) -> None:
    """Copy stored values into live arrays of the same name."""
    for name, array in arrays.items():
        np.copyto(array, stored[name])
