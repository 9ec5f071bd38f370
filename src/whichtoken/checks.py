"""Checks of arguments. Every message has the name, the value and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from whichtoken.errors import UsageError


def check_count(name: str, value: float, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not (_is_number(value) and math.isfinite(value) and value == int(value) and value >= least):
        raise _wrong(name, value, f"must be a whole number of at least {least}")


def check_integer(name: str, value: Any, least: int) -> None:
    """Refuse anything but an integer of at least `least`: 4.0 can neither index nor be the size of an array."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise _wrong(name, value, f"must be a whole number of at least {least}")


def check_range(
    name: str, value: float, low: float, high: float, *, include_low: bool = False, include_high: bool = False
) -> None:
    """Refuse values outside the interval from `low` to `high` (nan, text); the ends count only if included."""
    inside = _is_number(value) and (
        low < value < high or (include_low and value == low) or (include_high and value == high)
    )
    if not inside:
        interval = f"{'[' if include_low else '('}{low:g}, {high:g}{']' if include_high else ')'}"
        raise _wrong(name, value, f"must lie in {interval}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a name that is not in the list."""
    if value not in choices:
        raise _wrong(name, value, f"must be one of {', '.join(choices)}")


def check_features(X: Any, what: str) -> None:
    """Refuse numbers that cannot be computed with: not finite, or so large that their squares overflow."""
    import numpy as np

    from whichtoken.tables import LARGEST

    if not X.size:
        return
    with np.errstate(invalid="ignore"):
        low, high = float(X.min()), float(X.max())  # nan if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"X contains {'NaN' if math.isnan(low) else 'infinity'}; {what} must be finite")
    largest = high if high >= -low else low
    if abs(largest) > LARGEST:
        raise ValueError(f"X contains {largest:g}; {what} must be below {LARGEST:g} in size, so rescale the column")


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
        raise ValueError(f"{name} is a damaged sparse matrix ({error}); build it again") from error


def as_csr(name: str, matrix: Any) -> Any:
    """The matrix as `scipy.sparse.csr_array`, with checked arrays."""
    from scipy import sparse

    if sparse.issparse(matrix):
        check_sparse(name, matrix)
        return sparse.csr_array(matrix)
    # three arrays are taken as they are
    found = sparse.csr_array(matrix)
    check_sparse(name, found)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _wrong(name: str, value: Any, accepted: str) -> UsageError:
    return UsageError(f"{{{name}}} {accepted}", **{name: value})
