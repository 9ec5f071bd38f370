"""Processes on this machine, each with one task at a time, so that it is known which task a death or a delay is due to."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.engines.common import (
    GOES_ON,
    START_SECONDS,
    TICK,
    AwakeClock,
    Ended,
    cannot_start,
    children_ignore_interrupts,
    ensure_handles,
    run_rounds,
    start_tracker,
    timed_out,
)
from whichtoken.lab.engines.limits import TimeLimit
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome, be_a_worker, get_ready, work, worker_environment
from whichtoken.processes import safe_children

STARTS = 5  # workers in a row that end before they are ready, after which there is no point in starting more
SHARED_MEMORY = Path("/dev/shm")


class LocalEngine:
    """Processes on this machine; the death of one costs only its own task, which runs again.

    Parameters
    ----------
    workers : int
        Number of processes.
    limit : TimeLimit
        How long a task may take.

    Examples
    --------
    >>> from whichtoken.lab.engines import LocalEngine, TimeLimit
    >>> list(LocalEngine(workers=2, limit=TimeLimit()).map([]))
    []
    """

    def __init__(self, workers: int, limit: TimeLimit) -> None:
        self.workers = workers
        self.limit = limit

    def map(self, tasks: Iterable[RunTask]) -> Generator[tuple[RunTask, Outcome]]:
        from loky.backend import resource_tracker

        tasks = list(tasks)
        ensure_handles(min(self.workers, len(tasks)))
        clear_semaphores()
        with safe_children():
            try:
                for tracker in (resource_tracker, multiprocessing.resource_tracker):  # loky starts both
                    start_tracker(tracker)
            except OSError as error:
                raise cannot_start("worker processes", error) from error
            yield from run_rounds(self._round, tasks)

    def _round(self, tasks: deque[RunTask], alone: bool) -> Iterator[Ended]:
        clock = AwakeClock()
        lanes = [_Lane(self.limit.seconds, clock) for _ in range(min(1 if alone else self.workers, len(tasks)))]
        ended: list[Ended] = []
        try:
            while True:
                for lane in lanes:
                    if tasks and lane.task is None:
                        lane.give(tasks.popleft())
                yield from ended  # only now: no worker waits while a row is stored
                busy = [lane for lane in lanes if lane.task is not None]
                if not busy:
                    return
                seconds = max(0.0, min(TICK, *(lane.seconds_left for lane in busy)))
                wait([lane.awaited for lane in busy], timeout=seconds, return_when=FIRST_COMPLETED)
                clock.tick()
                ended = [end for lane in busy if (end := lane.ended()) is not None]
                if any(outcome is not None for _, outcome in ended):
                    for lane in lanes:
                        lane.failed_starts = 0  # rows are finished, so that workers can be started: go on
        finally:
            for lane in lanes:
                lane.close()


class _Lane:
    """One worker process and the task that it is busy with."""

    def __init__(self, seconds: float, clock: AwakeClock) -> None:
        self.task: RunTask | None = None
        self._clock = clock
        self._seconds = seconds
        self._pool: Any = None
        self._start: Future[None] | None = None  # open while the worker starts: its time is not the point's
        self._future: Future[Outcome]
        self._since = 0.0
        self.failed_starts = 0

    def give(self, task: RunTask) -> None:
        """Let the worker run this task, starting one if there is none."""
        from loky.process_executor import BrokenProcessPool

        self.task = task
        while True:
            try:
                with children_ignore_interrupts():
                    if self._pool is None:
                        self._open()
                    self._future = self._pool.submit(work, task)
            except BrokenProcessPool:  # the worker died when it had nothing to do, or at once
                self._count_failed_start()
            except Exception as error:
                raise cannot_start("worker processes", error) from error
            else:
                self._clock.tick()
                self._since = self._clock.seconds
                return

    @property
    def awaited(self) -> Future[Any]:
        """What happens next: the worker is ready, or the task is done."""
        return self._start or self._future

    @property
    def seconds_left(self) -> float:
        return (self._seconds if self._start is None else START_SECONDS) - (self._clock.seconds - self._since)

    def ended(self) -> Ended | None:
        """The task with its outcome (None: the worker died); nothing while it goes on."""
        if self._start is not None and not self._started():
            return None
        if self._future.done():
            outcome = self._outcome()
        elif self.seconds_left <= 0:
            self.close()
            outcome = timed_out(self._seconds)
        else:
            return None
        assert self.task is not None
        task, self.task = self.task, None
        return task, outcome

    def close(self) -> None:
        """Kill the worker with all that it started."""
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)
        self._pool = self._start = None

    def _open(self) -> None:
        from loky import ProcessPoolExecutor

        environment = worker_environment()
        if "PYTHONFAULTHANDLER" not in os.environ:
            environment["PYTHONFAULTHANDLER"] = ""  # a crash is a failed row, not pages of stacks on the terminal
        self._pool = ProcessPoolExecutor(1, env=environment, initializer=be_a_worker, initargs=(os.getpid(),))
        self._start = self._pool.submit(get_ready)

    def _started(self) -> bool:
        """Whether the worker is ready; one that never will be is replaced."""
        assert self._start is not None
        if self._start.done() and self._start.exception() is None:
            self._start, self._since, self.failed_starts = None, self._clock.seconds, 0
            return True
        if self._start.done() or self.seconds_left <= 0:
            self._count_failed_start()
            assert self.task is not None
            self.give(self.task)
        return False

    def _count_failed_start(self) -> None:
        self.close()
        self.failed_starts += 1
        if self.failed_starts == STARTS:
            raise UsageError(
                f"worker processes cannot be started: {STARTS} in a row ended or hung before they were ready "
                f"(out of memory?); {GOES_ON}"
            )

    def _outcome(self) -> Outcome | None:
        from loky.process_executor import BrokenProcessPool

        error = self._future.exception()
        if error is None:
            return self._future.result()
        self.close()
        return None if isinstance(error, BrokenProcessPool) else Outcome("failed", in_one_line(error), {}, 0.0)


def clear_semaphores(folder: Path = SHARED_MEMORY) -> None:
    """Remove what pools left whose driver was killed together with the process that tidies up after it.

    Only Linux keeps semaphores as files in such a folder; elsewhere there is nothing to remove.
    """
    for path in folder.glob("sem.loky-*"):
        owner = path.name.split("-")[1]
        with suppress(OSError, OverflowError):
            if owner.isdigit() and not _exists(int(owner)) and path.stat().st_uid == os.getuid():
                path.unlink()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and another user's
        return True
    return True
