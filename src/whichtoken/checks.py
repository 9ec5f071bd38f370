"""Checks of arguments, each with one wording: the name, the value, and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any


def check_count(name: str, value: float, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not (_is_number(value) and math.isfinite(value) and value == int(value) and value >= least):
        raise ValueError(f"{name}={_shown(value)} must be a whole number of at least {least}")


def check_integer(name: str, value: Any, least: int) -> None:
    """Refuse anything but an integer of at least `least`: 4.0 can neither index nor be the size of an array."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={_shown(value)} must be a whole number of at least {least}")


def check_range(
    name: str, value: float, low: float, high: float, *, include_low: bool = False, include_high: bool = False
) -> None:
    """Refuse values outside the interval from `low` to `high` (nan, text); the ends count only if included."""
    inside = _is_number(value) and (
        low < value < high or (include_low and value == low) or (include_high and value == high)
    )
    if not inside:
        interval = f"{'[' if include_low else '('}{low:g}, {high:g}{']' if include_high else ')'}"
        raise ValueError(f"{name}={_shown(value)} must lie in {interval}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a name that is not in the list."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}")


def check_sparse(name: str, matrix: Any) -> None:
    """Refuse a sparse matrix whose arrays do not fit together: compiled code would read or write outside of them."""
    try:
        if hasattr(matrix, "check_format"):  # csr, csc, bsr
            matrix.check_format(full_check=True)
        elif matrix.format == "coo":
            for axis, places in enumerate(matrix.coords):
                if len(places) != len(matrix.data):
                    raise ValueError("coordinates and data should have the same size")
                if len(places) and not 0 <= places.min() <= places.max() < matrix.shape[axis]:
                    raise ValueError(f"axis {axis} has coordinates outside of the shape {matrix.shape}")
    except ValueError as error:
        raise ValueError(f"{name} is a damaged sparse matrix ({error}); build it anew") from error


def as_csr(name: str, matrix: Any) -> Any:
    """The matrix as `scipy.sparse.csr_array`, its arrays checked before they are converted and after."""
    from scipy import sparse

    given = sparse.issparse(matrix)
    if given:
        check_sparse(name, matrix)
    found = sparse.csr_array(matrix)
    if not given:  # three arrays are taken as they are
        check_sparse(name, found)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """With quotes around text, which would otherwise look like the number that it is not."""
    return repr(value) if isinstance(value, str) else str(value)
