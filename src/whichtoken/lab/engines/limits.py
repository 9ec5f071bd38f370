"""How long one point may take before its worker is stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whichtoken.errors import UsageError

HOUR = 3600.0
# Far above what a point of the preset takes (seconds, minutes, hours), so that only one that will never end meets it.
DEFAULTS = {"quick": HOUR, "full": 6 * HOUR, "paper": 48 * HOUR}


@dataclass(frozen=True)
class TimeLimit:
    """Seconds that a point may take; `asked` tells a user's wish from the default of a preset."""

    seconds: float = math.inf
    asked: bool = False


def time_limit(seconds: Any, preset: str) -> TimeLimit:
    """The limit that was asked for, or the preset's.

    Raises
    ------
    UsageError : for anything but a positive number; `inf` means no limit.
    """
    if seconds is None:
        return TimeLimit(DEFAULTS.get(preset, DEFAULTS["paper"]))
    try:
        number = math.nan if isinstance(seconds, bool) else float(seconds)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise UsageError(f"timeout={seconds} must be a positive number of seconds, such as 600; inf means no limit")
    return TimeLimit(number, asked=True)
