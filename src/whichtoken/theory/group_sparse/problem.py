"""The parameters that every prediction shares, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from whichtoken.checks import check_integer


@dataclass(frozen=True)
class Problem:
    """Size, noise and encodings of a group-sparse problem."""

    groups: int
    sigma: float
    encoding_norm2: float

    @classmethod
    def checked(cls, groups: int, sigma: float, encoding_norm2: float | None) -> Self:
        """Fill in the norm of the sine encodings, (groups + 1)/2, and refuse what no formula covers."""
        check_integer("groups", groups, 2)
        norm2 = (groups + 1) / 2 if encoding_norm2 is None else encoding_norm2
        return cls(groups, positive("sigma", sigma), positive("encoding_norm2", norm2))


def positive(name: str, value: float) -> float:
    """Return `value`, or raise ValueError unless it is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value} must be positive and finite")
    return value
