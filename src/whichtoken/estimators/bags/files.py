"""Bags in files, one each: read when they are needed, so that a cohort may be larger than the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from whichtoken.attention import RaggedArray
from whichtoken.attention.ragged import on_disk, starts_of
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators.common import LARGEST
from whichtoken.extras import needed_by
from whichtoken.machine import available_memory
from whichtoken.reading import check_regular, read_arrays, readable, shown

Method = TypeVar("Method", bound=Callable[..., Any])
NAMES = ("features", "feats", "embeddings", "tokens", "arr_0")  # of the array, where a file has several
ENDINGS = (".npy", ".npz", ".h5", ".hdf5", ".pt", ".pth")
TOGETHER = 1 << 26  # bytes of bags that are read at a time


@dataclass(frozen=True)
class BagFiles(Shown, Sequence[Any]):
    """Bags that lie in files, one each: reach for it where the features of slides or recordings do not fit into memory.

    `BagClassifier` takes it, or a list of paths, as it takes a list of arrays; `predict`, `explain` and the rest read some files
    at a time. A fit keeps all instances in single precision, on disk where they would take more than a third of the memory.

    Parameters
    ----------
    paths : sequence of paths
        `.npy`, `.npz`, `.h5` (an array `features`, as CLAM and TRIDENT write it) or `.pt` (a tensor, or a dictionary with
        one; loaded with `weights_only`): arrays (instances, features), or with a leading 1.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> from whichtoken.estimators import BagFiles
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/slide.npy", np.ones((5, 3), np.float32))
    ...     BagFiles([f"{folder}/slide.npy"])[0].shape
    (5, 3)
    """

    paths: Sequence[str | Path]

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(map(Path, self.paths)))
        for path in map(Path, self.paths):
            if path.suffix.lower() not in ENDINGS:
                raise UsageError(f"{shown(path)}: the file of a bag must end in {', '.join(ENDINGS)}")
            check_regular(path)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, place: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, place: slice | NDArray[np.integer[Any]]) -> BagFiles: ...
    def __getitem__(self, place: Any) -> Any:
        """One bag (instances, features), or some of the files."""
        if isinstance(place, slice):
            return BagFiles(self.paths[place])
        if isinstance(place, np.ndarray):
            return BagFiles([self.paths[i] for i in place.tolist()])
        return _read_bag(Path(self.paths[place]))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        width = None
        for path in map(Path, self.paths):
            bag = _read_bag(path)
            width = width or bag.shape[1]
            if bag.shape[1] != width:
                first = shown(Path(self.paths[0]))
                raise UsageError(f"{shown(path)} has instances of width {bag.shape[1]}, those of {first} have {width}")
            yield bag

    def parts(self) -> Iterator[RaggedArray]:
        """All bags, some at a time."""
        some: list[NDArray[Any]] = []
        for bag in self:
            some.append(bag)
            if sum(part.nbytes for part in some) >= TOGETHER:
                yield _ragged(some)
                some = []
        if some:
            yield _ragged(some)

    def load(self) -> RaggedArray:
        """All bags at once, in single precision; in a file that is mapped to memory if they would take too much of it."""
        lengths = [len(bag) for bag in self]
        width = self[0].shape[1]
        shape = (sum(lengths), width)
        large = 4 * math.prod(shape) > available_memory() // 3
        values: Any = on_disk(shape, np.dtype(np.float32)) if large else np.empty(shape, np.float32)
        starts = starts_of(lengths)
        for place, bag in enumerate(self):
            values[starts[place] : starts[place + 1]] = bag
        return RaggedArray.unchecked(starts, values)


def _ragged(bags: list[NDArray[Any]]) -> RaggedArray:
    return RaggedArray.unchecked(starts_of([len(bag) for bag in bags]), np.concatenate(bags).astype(np.float32))


def as_files(X: Any) -> BagFiles | None:
    """X as files, if it is a list of paths."""
    if isinstance(X, BagFiles):
        return X
    several = isinstance(X, list | tuple) and len(X) > 0
    return BagFiles(X) if several and all(isinstance(path, str | Path) for path in X) else None


def some_files_at_a_time(method: Method) -> Method:
    """Let a method of bags, which gives a row or an item for each, read the files of `BagFiles` in parts."""

    @wraps(method)
    def run(model: Any, X: Any, *others: Any, **options: Any) -> Any:
        files = as_files(X)
        if files is None:
            return method(model, X, *others, **options)
        found = [method(model, part, *others, **options) for part in files.parts()]
        return np.concatenate(found) if isinstance(found[0], np.ndarray) else [item for part in found for item in part]

    return cast(Method, run)


def _read_bag(path: Path) -> NDArray[Any]:
    """The instances of one file, finite numbers (instances, features)."""
    with readable(path, path.suffix[1:].lower()):
        match path.suffix.lower():
            case ".npy":
                found = np.load(path, mmap_mode="r", allow_pickle=False)
            case ".npz":
                with np.load(path, allow_pickle=False) as arrays:
                    name = _chosen(path, dict.fromkeys(arrays.files))
                found = read_arrays(path, [name])[name]
            case ".h5" | ".hdf5":
                found = _read_h5(path)
            case _:
                found = _read_tensor(path)
        array = found[0] if found.ndim == 3 and len(found) == 1 else found
        if array.ndim != 2 or array.dtype.kind not in "fiu":
            raise UsageError(
                f"{shown(path)} holds {array.dtype} of shape {found.shape}; a bag is (instances, features)"
            )
        if 0 in array.shape:
            raise UsageError(f"{shown(path)} holds no instances; every bag must have at least one")
        values = np.asarray(array, np.float64 if array.dtype == np.float64 else np.float32)
        if not (float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST):  # also nan
            raise UsageError(f"{shown(path)} holds numbers that are missing or not finite; leave such instances out")
        return values


def _chosen(path: Path, arrays: dict[str, Any]) -> str:
    """Which of the arrays of a file has the features: the only one, or one of the usual names."""
    found = [name for name in NAMES if name in arrays] or ([*arrays] if len(arrays) == 1 else [])
    if not found:
        raise UsageError(
            f"{shown(path)} has the arrays {', '.join(map(shown, sorted(arrays)))}; none is named 'features'"
        )
    return found[0]


def _read_h5(path: Path) -> NDArray[Any]:
    with needed_by(shown(path)):
        import h5py

    with h5py.File(path, "r") as file:
        arrays = {name: part for name, part in file.items() if isinstance(part, h5py.Dataset)}
        return np.asarray(arrays[_chosen(path, arrays)])


def _read_tensor(path: Path) -> NDArray[Any]:
    with needed_by(shown(path)):
        import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError) as error:  # torch would advise to load such a file unsafely
        said = "cannot be read as tensors: it is damaged or holds other objects, which are never loaded; save the tensor alone"
        raise UsageError(f"{shown(path)} {said}") from error
    if isinstance(found, dict):
        found = found[_chosen(path, found)]
    if not isinstance(found, torch.Tensor):
        raise UsageError(f"{shown(path)} holds {type(found).__name__}; a bag is a tensor (instances, features)")
    # a tensor may repeat a few stored numbers as often as it likes
    if found.layout != torch.strided or found.untyped_storage().nbytes() < found.numel() * found.element_size():
        raise UsageError(
            f"{shown(path)} does not hold all numbers of its tensor; save a dense one that was not expanded"
        )
    wide = found.float() if found.dtype.itemsize < 4 and found.is_floating_point() else found
    return np.asarray(wide.detach().numpy())
