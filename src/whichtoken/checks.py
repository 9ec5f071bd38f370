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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """With quotes around text, which would otherwise look like the number that it is not."""
    return repr(value) if isinstance(value, str) else str(value)
