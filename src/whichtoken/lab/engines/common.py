"""What the engines share: tasks whose worker died or took too long run again or fail, and Ctrl-C reaches the driver only."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError, in_one_line, system_fault
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome

TRIES = 3  # a task fails if its worker dies this often
TICK = 0.5  # seconds between two checks of the clock
OPEN_FILES, FILES_PER_WORKER = 64, 16  # of a driver: about twice what was measured
RESUME_HINT = "finished rows are saved, and the same command continues from there"
START_SECONDS = 120.0  # to start a worker and load the experiments; not part of a point's time

TaskEnd = tuple[RunTask, Outcome | None]  # None: the worker died
Round = Callable[
    [deque[RunTask], bool], Iterator[TaskEnd]
]  # runs a queue of tasks, with all workers or (alone) with one


class AwakeClock:
    """Seconds that this process was awake until the last tick: a pause (Ctrl-Z, a closed lid) does not count."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        """Advance the clock; to be called about every TICK seconds."""
        now = time.monotonic()
        self.seconds += min(now - self._last, 4 * TICK)
        self._last = now


class Engine(Protocol):
    """Runs tasks and yields each with its outcome, in the order in which they finish.

    Examples
    --------
    >>> from whichtoken.lab.engines import parse_engine
    >>> engine = parse_engine("local", workers=2)
    >>> list(engine.map([]))  # nothing to do
    []
    """

    def map(self, tasks: Iterable[RunTask]) -> Generator[tuple[RunTask, Outcome]]: ...


def run_rounds(one_round: Round, tasks: Iterable[RunTask]) -> Iterator[tuple[RunTask, Outcome]]:
    """Run all tasks; those whose worker died run again after the others, one at a time, with all the memory."""
    waiting, deaths = deque(tasks), Counter[RunTask]()
    alone = False
    while waiting:
        again: deque[RunTask] = deque()
        for task, outcome in one_round(waiting, alone):
            if outcome is not None:
                yield task, outcome
                continue
            deaths[task] += 1
            if deaths[task] < TRIES:
                again.append(task)
            else:
                reason = f"the worker died {TRIES} times while running this point (out of memory?)"
                yield task, Outcome("failed", reason, {}, 0.0)
        waiting, alone = again, True


def timed_out(seconds: float) -> Outcome:
    return Outcome("failed", f"stopped after {seconds:g} s, the time limit of a point (timeout)", {}, seconds)


def cannot_start(what: str, error: Exception) -> UsageError:
    """The error for workers that the system refuses to start."""
    reason = system_fault(error) or f"{in_one_line(error)}; is the machine out of memory?"
    return UsageError(f"{what} cannot be started: {reason}; {RESUME_HINT}")


def ensure_open_files(workers: int) -> None:
    """Raise this process's limit on open files to what so many workers need; an error if the system forbids it.

    Libraries that run out of open files while they start leave processes and long tracebacks behind.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = OPEN_FILES + FILES_PER_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise UsageError(
            f"{workers} worker processes need about {needed} open files, and the system allows {hard}; "
            "raise that limit (ulimit -n) or use fewer workers"
        )
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def start_resource_tracker(tracker: Any) -> None:
    """Start the process that cleans up after this one, if it is not running yet.

    After kill -9 of the driver it would print warnings with lines of source; they are silenced unless Python's -W is given.
    """
    before = os.environ.get("PYTHONWARNINGS")
    if not sys.warnoptions:
        os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        tracker.ensure_running()
    finally:
        if before is None:
            os.environ.pop("PYTHONWARNINGS", None)
        else:
            os.environ["PYTHONWARNINGS"] = before


@contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Processes and threads started here ignore Ctrl-C, which a terminal sends to all; only the driver handles it.

    For the driver, it is delayed until the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


HOUR = 3600.0
# Far longer than a point of the preset takes (seconds, minutes, hours): only a point that hangs reaches it.
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
    """The time limit that the user asked for, or that of the preset.

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
        raise UsageError(
            "{timeout} must be a positive number of seconds, such as 600; inf means no limit", timeout=seconds
        )
    return TimeLimit(number, asked=True)
