"""The sparse-token task: what it is made of, and which values make sense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

LOSSES = ("logistic", "square", "hinge")


@dataclass(frozen=True)
class Task:
    """Binary classification of sequences in which few tokens of the positive class carry a weak signal.

    A negative sequence is `length` standard Gaussian tokens. A positive one has `strength` times a hidden unit vector
    added to `signal_tokens` of its tokens, at positions drawn anew for every sequence (Barnfield, Cui, Lu, arXiv
    2509.25153, section 2).
    """

    length: int
    signal_tokens: int
    strength: float
    prevalence: float

    def __post_init__(self) -> None:
        check_count("length", self.length, 2)
        check_signal_tokens(self.signal_tokens, self.length)
        check_range("strength", self.strength, 0.0, math.inf, include_low=True)
        check_range("prevalence", self.prevalence, 0.0, 1.0)

    @property
    def separation(self) -> float:
        """Distance of the two class means in units of the noise, for any linear model: strength * R / sqrt(L)."""
        return self.strength * self.signal_tokens / math.sqrt(self.length)


def check_signal_tokens(signal_tokens: int, length: int) -> None:
    """Refuse a number of signal tokens that sequences of this length do not have."""
    check_count("signal_tokens", signal_tokens, 1)
    if signal_tokens >= length:
        raise ValueError(f"signal_tokens={signal_tokens} must be smaller than length={length}")


def check_count(name: str, value: float, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not (_is_number(value) and math.isfinite(value) and value == int(value) and value >= least):
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


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a name that is not in the list."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """With quotes around text, which would otherwise look like the number that it is not."""
    return repr(value) if isinstance(value, str) else str(value)
