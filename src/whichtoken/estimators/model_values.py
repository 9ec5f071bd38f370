"""Values of a model folder, looked at before they are used: someone may have edited them and computed the checksum anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import reason, shown
from whichtoken.errors import UsageError

Array = NDArray[np.float64]
LARGEST_LABELS = 1 << 28  # bytes of all together: each takes as much as the longest


@contextmanager
def stored_fields(folder: object) -> Iterator[None]:
    """Say in a sentence which value of a model folder is missing or strange, while a model is put together."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{shown(str(folder))} is damaged: {error}; fit the model again") from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
        said = f"{reason(error)} is missing" if isinstance(error, KeyError) else reason(error)
        raise UsageError(f"{shown(str(folder))} is damaged: {said}; fit the model again") from error


def section(where: str, stored: Any, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object with exactly these names."""
    if not isinstance(stored, dict):
        raise UsageError(f"'{where}' is not an object")
    for name in names:
        if name not in stored:
            raise UsageError(f"'{where}' has no '{name}'")
    if strange := set(stored) - {*names, *optional}:
        raise UsageError(f"'{where}' has an unknown field '{shown(min(strange))}'")
    return stored


def number(where: str, value: Any, low: float, *, include_low: bool = False) -> float:
    """A finite number above `low`, or `low` itself if it is included."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    if not real or not (value > low or (include_low and value == low)):
        wanted = f"of at least {low:g}" if include_low else f"above {low:g}"
        raise UsageError(f"'{where}' is {shown(repr(value)[:60])}, not a finite number {wanted}")
    return float(value)


def count(where: str, value: Any, least: int = 1) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 53:
        raise UsageError(f"'{where}' is {shown(repr(value)[:60])}, not a whole number of at least {least}")
    return value


def texts(where: str, values: Any, size: int | None = None, *, unique: bool = True) -> list[str]:
    """A list of strings."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UsageError(f"'{where}' is not a list of texts")
    if size is not None and len(values) != size:
        raise UsageError(f"'{where}' has {len(values)} entries instead of {size}")
    if unique and len(set(values)) < len(values):
        raise UsageError(f"'{where}' names the same thing twice")
    return values


def arrays(tensors: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Array]:
    """Exactly the named arrays, of these shapes, of finite numbers in double precision."""
    if set(tensors) != set(shapes):
        raise UsageError(f"arrays {', '.join(map(shown, sorted(tensors)))} are not {', '.join(sorted(shapes))}")
    for name, shape in shapes.items():
        array = tensors[name]
        if array.dtype != np.float64 or array.shape != shape:
            raise UsageError(f"array '{name}' is {array.dtype} of shape {array.shape}, not float64 of shape {shape}")
        if not np.isfinite(array).all():
            raise UsageError(f"array '{name}' holds numbers that are not finite")
        yield array


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator without a state of a generator, which belongs to the fit and not to the model."""
    seed = settings.get("random_state")
    return {**settings, "random_state": seed if isinstance(seed, int | np.integer | None) else None}


def check_seed(value: Any) -> None:
    """Refuse what is no seed."""
    if value is not None:
        count("random_state", value, 0)


def classes_as_json(classes: NDArray[Any]) -> dict[str, Any]:
    """Class labels with their dtype."""
    return {"dtype": classes.dtype.str if classes.dtype != object else "object", "values": classes.tolist()}


def classes_from_json(stored: Any) -> NDArray[Any]:
    """The array that `classes_as_json` described: two or more labels of one type, ascending, each once."""
    described = section("classes", stored, ["dtype", "values"])
    dtype = np.dtype(str(described["dtype"]))
    values = described["values"]
    plain = isinstance(values, list) and all(isinstance(value, str | int | float) for value in values)
    if dtype.kind not in "biufUO" or not plain or not 2 <= len(values) <= LARGEST_LABELS // max(1, dtype.itemsize):
        raise UsageError("'classes' are not two or more texts or numbers")
    classes = np.array(values, dtype=dtype)
    same = list(map(repr, classes.tolist())) == list(map(repr, values))  # 1, 1.0 and True are not
    if not same or not all(a < b for a, b in pairwise(values)):
        raise UsageError("'classes' are not in ascending order, each once, in their type")
    return classes


def scores(classes: NDArray[Any]) -> int:
    """How many scores tell classes apart: one for two, otherwise one for each."""
    return 1 if len(classes) == 2 else len(classes)
