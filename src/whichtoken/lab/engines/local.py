"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from whichtoken.errors import in_one_line
from whichtoken.lab.engines.common import (
    Engine,
    Job,
    TimeLimit,
    Workers,
    cannot_start,
    children_ignore_interrupts,
    ensure_open_files,
    failed_outcome,
    start_resource_tracker,
)
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import init_worker, worker_environment
from whichtoken.processes import safe_children

SHARED_MEMORY = Path("/dev/shm")


class LocalEngine(Engine):
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

    @contextmanager
    def open(self, number: int) -> Iterator[Workers]:
        from loky.backend import resource_tracker

        ensure_open_files(number)
        clear_semaphores()
        with safe_children(), closing(Processes(number, self.limit)) as processes:
            try:
                for tracker in (resource_tracker, multiprocessing.resource_tracker):  # loky starts both
                    start_resource_tracker(tracker)
            except OSError as error:
                raise cannot_start("worker processes", error) from error
            yield processes


class Processes(Workers):
    """Workers that are pools of one process each: a larger pool of loky ends all its processes when one dies."""

    def __init__(self, number: int, limit: TimeLimit) -> None:
        super().__init__(limit)
        self._number = number
        self.threads = dict.fromkeys(range(number), 1)
        self._pools: dict[Any, Any] = {}

    def fill(self, waiting: deque[RunTask], alone: bool) -> None:
        if alone != ("alone" in self.threads):  # one fresh process has all the memory
            self.close()
            self.threads = {"alone": 1} if alone else dict.fromkeys(range(self._number), 1)
        super().fill(waiting, alone)

    def submit(self, worker: Any, function: Any, argument: Any) -> Any:
        from loky import ProcessPoolExecutor
        from loky.process_executor import BrokenProcessPool

        # a crash is a failed row, not a long traceback on the terminal
        quiet = {} if "PYTHONFAULTHANDLER" in os.environ else {"PYTHONFAULTHANDLER": ""}
        try:
            with children_ignore_interrupts():
                if worker not in self._pools:
                    self._pools[worker] = ProcessPoolExecutor(
                        1, env=worker_environment() | quiet, initializer=init_worker, initargs=(os.getpid(),)
                    )
                return self._pools[worker].submit(function, argument)
        except BrokenProcessPool:  # the process died while idle, or at its start
            self.stop({worker})
            self.start_failed(worker)
            return None
        except Exception as error:
            raise cannot_start("worker processes", error) from error

    def fail(self, job: Job, error: Exception) -> None:
        from loky.process_executor import BrokenProcessPool

        self.end(job, None if isinstance(error, BrokenProcessPool) else failed_outcome(in_one_line(error)))
        self.stop({job.worker})

    def kill(self, workers: set[Any]) -> None:
        for worker in workers & self._pools.keys():
            self._pools.pop(worker).shutdown(kill_workers=True)

    def close(self) -> None:
        self.stop(set(self._pools))


def clear_semaphores(folder: Path = SHARED_MEMORY) -> None:
    """Remove semaphores of pools whose driver was killed together with its resource tracker.

    Only Linux keeps semaphores as files.
    """
    import psutil

    for path in folder.glob("sem.loky-*"):
        owner = path.name.split("-")[1]
        with suppress(OSError, OverflowError):
            if owner.isdigit() and not psutil.pid_exists(int(owner)) and path.stat().st_uid == os.getuid():
                path.unlink()
