"""Worker processes on this machine, each with one task at a time, so that the task of a dead or slow worker is known."""

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
    RESUME_HINT,
    START_SECONDS,
    TICK,
    AwakeClock,
    TaskEnd,
    TimeLimit,
    cannot_start,
    children_ignore_interrupts,
    ensure_open_files,
    run_rounds,
    start_resource_tracker,
    timed_out,
)
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome, init_worker, prepare_worker, work, worker_environment
from whichtoken.processes import safe_children

STARTS = 5  # failed starts of workers in a row after which the run gives up
SHARED_MEMORY = Path("/dev/shm")


class LocalEngine:
    """Worker processes on this machine; if one dies, its task runs again.

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
        ensure_open_files(min(self.workers, len(tasks)))
        clear_semaphores()
        with safe_children():
            try:
                for tracker in (resource_tracker, multiprocessing.resource_tracker):  # loky starts both
                    start_resource_tracker(tracker)
            except OSError as error:
                raise cannot_start("worker processes", error) from error
            yield from run_rounds(self._round, tasks)

    def _round(self, tasks: deque[RunTask], alone: bool) -> Iterator[TaskEnd]:
        clock = AwakeClock()
        workers = [_Worker(self.limit.seconds, clock) for _ in range(min(1 if alone else self.workers, len(tasks)))]
        ended: list[TaskEnd] = []
        try:
            while True:
                for worker in workers:
                    if tasks and worker.task is None:
                        worker.give(tasks.popleft())
                yield from ended  # only now: no worker waits while a row is stored
                busy = [worker for worker in workers if worker.task is not None]
                if not busy:
                    return
                seconds = max(0.0, min(TICK, *(worker.seconds_left for worker in busy)))
                wait([worker.awaited for worker in busy], timeout=seconds, return_when=FIRST_COMPLETED)
                clock.tick()
                ended = [end for worker in busy if (end := worker.ended()) is not None]
                if any(outcome is not None for _, outcome in ended):
                    for worker in workers:
                        worker.failed_starts = 0  # workers can be started, since a row was finished
        finally:
            for worker in workers:
                worker.close()


class _Worker:
    """One worker process and its current task."""

    def __init__(self, seconds: float, clock: AwakeClock) -> None:
        self.task: RunTask | None = None
        self._clock = clock
        self._seconds = seconds
        self._pool: Any = None
        self._start: Future[None] | None = None  # while the worker starts, which is not part of the point's time
        self._future: Future[Outcome]
        self._since = 0.0
        self.failed_starts = 0

    def give(self, task: RunTask) -> None:
        """Run this task in the process, which is started if there is none."""
        from loky.process_executor import BrokenProcessPool

        self.task = task
        while True:
            try:
                with children_ignore_interrupts():
                    if self._pool is None:
                        self._open()
                    self._future = self._pool.submit(work, task)
            except BrokenProcessPool:  # the process died while idle, or at its start
                self._count_failed_start()
            except Exception as error:
                raise cannot_start("worker processes", error) from error
            else:
                self._clock.tick()
                self._since = self._clock.seconds
                return

    @property
    def awaited(self) -> Future[Any]:
        """What to wait for: that the worker is ready, or that the task is done."""
        return self._start or self._future

    @property
    def seconds_left(self) -> float:
        return (self._seconds if self._start is None else START_SECONDS) - (self._clock.seconds - self._since)

    def ended(self) -> TaskEnd | None:
        """The task with its outcome (None: the worker died), or None while it is running."""
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
        """Kill the worker and the processes that it started."""
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)
        self._pool = self._start = None

    def _open(self) -> None:
        from loky import ProcessPoolExecutor

        environment = worker_environment()
        if "PYTHONFAULTHANDLER" not in os.environ:
            # a crash is a failed row, not a long traceback on the terminal
            environment["PYTHONFAULTHANDLER"] = ""
        self._pool = ProcessPoolExecutor(1, env=environment, initializer=init_worker, initargs=(os.getpid(),))
        self._start = self._pool.submit(prepare_worker)

    def _started(self) -> bool:
        """Whether the worker is ready; one that failed to start is replaced."""
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
                f"(out of memory?); {RESUME_HINT}"
            )

    def _outcome(self) -> Outcome | None:
        from loky.process_executor import BrokenProcessPool

        error = self._future.exception()
        if error is None:
            return self._future.result()
        self.close()
        return None if isinstance(error, BrokenProcessPool) else Outcome("failed", in_one_line(error), {}, 0.0)


def clear_semaphores(folder: Path = SHARED_MEMORY) -> None:
    """Remove semaphores of pools whose driver was killed together with its resource tracker.

    Only Linux keeps semaphores as files.
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
    except PermissionError:  # it exists and belongs to another user
        pass
    return True
