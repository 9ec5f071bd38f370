"""How long one point may take before its worker is stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError

HOUR = 3600.0
# Far above what a point of the preset takes (seconds, minutes, hours), so that only one that will never end meets it.
DEFAULTS = {"quick": HOUR, "full": 6 * HOUR, "paper": 48 * HOUR}


@dataclass(frozen=True)
class TimeLimit(Shown):
    """How long a point may take.

    Parameters
    ----------
    seconds : float, default=inf
        Seconds that a point may take.
    asked : bool, default=False
        Whether a user asked for it, rather than the preset.

    Examples
    --------
    >>> from whichtoken.lab.engines import TimeLimit
    >>> TimeLimit(60.0, asked=True).seconds
    60.0
    """

    seconds: float = math.inf
    asked: bool = False


def time_limit(seconds: Any, preset: str) -> TimeLimit:
    """The limit that was asked for, or the preset's.

    Parameters
    ----------
    seconds : float, str or None
        What was asked for; None takes the preset's.
    preset : str
        Quick, full or paper.

    Returns
    -------
    TimeLimit
        The limit, and whether it was asked for.

    Raises
    ------
    UsageError
        For anything but a positive number; `inf` means no limit.

    Examples
    --------
    >>> from whichtoken.lab.engines import time_limit
    >>> time_limit(None, "quick").seconds, time_limit("inf", "quick").seconds
    (3600.0, inf)
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
