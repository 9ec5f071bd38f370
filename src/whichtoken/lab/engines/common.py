"""What the engines share: what becomes of a task whose worker died or took too long, and calm on Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from whichtoken.errors import UsageError, in_one_line, system_fault
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome

TRIES = 3  # a task whose worker dies this often is recorded as failed
TICK = 0.5  # seconds between two looks at the clock
HANDLES, HANDLES_OF_A_WORKER = 64, 16  # open files of a driver: about twice what was measured
GOES_ON = "finished rows are saved, and the same command continues from there"
START_SECONDS = 120.0  # to start a worker and load the experiments; not part of a point's time

Ended = tuple[RunTask, Outcome | None]  # None: the worker died
Round = Callable[[deque[RunTask], bool], Iterator[Ended]]  # works a queue off, with all workers or (alone) with one


class AwakeClock:
    """Seconds that this process was awake, as of the last tick: a pause (Ctrl-Z, a closed lid) is no point's delay."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        """Go on; to be called every TICK seconds or so."""
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
    """Run all tasks; those whose worker died run again, one by one after the others, with the memory for themselves."""
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
                yield task, worker_died()
        waiting, alone = again, True


def worker_died() -> Outcome:
    return Outcome("failed", f"the worker died {TRIES} times while running this point (out of memory?)", {}, 0.0)


def timed_out(seconds: float) -> Outcome:
    return Outcome("failed", f"stopped after {seconds:g} s, the time limit of a point (--timeout)", {}, seconds)


def cannot_start(what: str, error: Exception) -> UsageError:
    """The sentence for workers that the system does not let us start."""
    reason = system_fault(error) or f"{in_one_line(error)}; is the machine out of memory?"
    return UsageError(f"{what} cannot be started: {reason}; {GOES_ON}")


def ensure_handles(workers: int) -> None:
    """Raise this process's limit on open files if so many workers need more, or say that it is too low.

    Libraries that run out of them in the middle of a start leave processes and pages of stacks behind.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = HANDLES + HANDLES_OF_A_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise UsageError(
            f"{workers} worker processes need about {needed} open files, and the system allows {hard}; "
            "raise that limit (ulimit -n) or give fewer --workers"
        )
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def start_tracker(tracker: Any) -> None:
    """Start the process that tidies up after this one, if it is not there yet.

    After kill -9 of the driver it would write down what it found, with lines of source, unless Python's -W is given.
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
    """Processes and threads started here never see Ctrl-C, which a terminal sends to all: the driver alone answers it.

    For the driver itself it only waits until the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
