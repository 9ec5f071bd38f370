"""Arrays of .npz files: no pickles, and no size is believed before it is checked."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from whichtoken.data.reading import check_fits, readable, shown
from whichtoken.errors import UsageError

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of a file, those of `optional` where they are there."""
    with readable(path, "npz"), zipfile.ZipFile(path) as archive:
        there = {member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy")}
        for name in names:
            if name not in there:
                raise UsageError(f"{shown(path)} has no array '{name}'; arrays: {', '.join(map(shown, sorted(there)))}")
        return {name: _array(path, archive, name) for name in [*names, *optional] if name in there}


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        size = _declared(path, name, file)
    if size > member.file_size:
        raise ValueError(f"array '{name}' declares {size} bytes and has {member.file_size}")
    check_fits(path, size, f"array '{name}'")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _declared(path: Path, name: str, file: IO[bytes]) -> int:
    """Bytes that an array says it has."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"array '{name}' has format {version[0]}.{version[1]}, which is not known")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise UsageError(
            f"{shown(path)}: array '{name}' holds Python objects, which are never loaded; save numbers or texts"
        )
    return math.prod(shape) * int(dtype.itemsize)
