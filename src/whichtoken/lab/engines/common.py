"""What the engines share: the scheduler of tasks, limits of time and open files, and Ctrl-C that reaches the driver only."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError, in_one_line, system_fault
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome, prepare_worker, work
from whichtoken.processes import restored_environment

TRIES = 3  # a task fails if its worker dies this often
STARTS = 5  # failed starts of a worker after which the run gives up, unless a task finishes in between
TICK = 0.5  # seconds between two checks of the clock
OPEN_FILES, FILES_PER_WORKER = 64, 16  # of a driver: about twice what was measured
RESUME_HINT = "finished rows are saved, and the same command continues from there"
START_SECONDS = 120.0  # to start a worker and load the experiments; not part of a point's time
PATIENCE = 30.0  # seconds for a scheduler, any worker or a finished result to come


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


class Engine(ABC):
    """Runs tasks and yields each with its outcome, in the order in which they finish.

    Examples
    --------
    >>> from whichtoken.lab.engines import parse_engine
    >>> engine = parse_engine("local", workers=2)
    >>> list(engine.map([]))  # nothing to do
    []
    """

    workers: int
    limit: TimeLimit
    _stack: ExitStack | None = None  # open while workers are kept
    _kept: Workers | None = None

    @abstractmethod
    def open(self, number: int) -> AbstractContextManager[Workers]:
        """Workers, at most so many, which end with the block."""

    def map(self, tasks: Iterable[RunTask]) -> Generator[tuple[RunTask, Outcome]]:
        """Run the tasks."""
        tasks = list(tasks)
        if self._stack is None:
            with self.open(min(self.workers, len(tasks))) as workers:
                yield from workers.run(tasks)
            return
        if self._kept is None:
            self._kept = self._stack.enter_context(self.open(self.workers))
        if math.isfinite(self._kept.limit.seconds):  # infinite where workers cannot be stopped
            self._kept.limit = self.limit
        try:
            yield from self._kept.run(tasks)
        finally:
            self._kept.abandon()

    @contextmanager
    def keep_workers(self) -> Iterator[None]:
        """Use the same workers for every `map` in the block: a search has hundreds of small ones."""
        try:
            with ExitStack() as self._stack:
                yield
        finally:
            self._stack = self._kept = None


@dataclass(eq=False)
class Job:
    """What a worker does, and since when: a task, or (None) its own start."""

    task: RunTask | None
    worker: Any
    future: Any  # of loky or Dask
    since: float


class Workers(ABC):
    """Runs tasks on workers; a subclass says how a worker is given a job and how it is killed.

    The schedulers of loky and Dask run lost tasks again too, but they cannot trace a death or a delay to its task: a pool of
    loky breaks as a whole, and Dask suspects every task that a dead worker held and has no limit of time. Therefore each
    thread of a worker gets one task at a time from here, and the task of a dead worker runs again alone.
    """

    driver: int | None = None  # the process that started the workers for this run alone

    def __init__(self, limit: TimeLimit) -> None:
        self.limit = limit
        self.clock = AwakeClock()
        self.threads: dict[Any, int] = {}  # how many tasks each worker takes at once
        self.ready: set[Any] = set()  # workers that have started
        self.jobs: list[Job] = []
        self.failures: Counter[Any] = Counter()  # failed starts of each worker since a task finished
        self._again: list[RunTask] = []  # to run again, through no fault of their own
        self._ended: list[tuple[RunTask, Outcome | None]] = []  # None: the worker died
        self._wake = threading.Event()  # a job may be done

    @abstractmethod
    def submit(self, worker: Any, function: Any, argument: Any) -> Any:
        """The future of a call in a worker; None if the worker has died."""

    @abstractmethod
    def fail(self, job: Job, error: Exception) -> None:
        """Handle a job that is done but has no result: `end` it, or `run_again`."""

    @abstractmethod
    def kill(self, workers: set[Any]) -> None:
        """Kill workers, and the processes that they started."""

    def run(self, tasks: Iterable[RunTask]) -> Iterator[tuple[RunTask, Outcome]]:
        """Run all tasks; those whose worker died run again after the others, one at a time, with all the memory."""
        waiting, alone = deque(tasks), False
        suspects, deaths = deque[RunTask](), Counter[RunTask]()
        while True:
            waiting.extendleft(self._again)
            self._again.clear()
            self.fill(waiting, alone)
            ended, self._ended = self._ended, []
            for task, outcome in ended:  # only now: no worker waits while a row is stored
                if outcome is not None:
                    yield task, outcome
                    continue
                deaths[task] += 1
                if deaths[task] < TRIES:
                    suspects.append(task)
                else:
                    yield (
                        task,
                        failed_outcome(f"the worker died {TRIES} times while running this point (out of memory?)"),
                    )
            if waiting or self._again or self._is_running():
                self._wait()
            elif suspects:
                waiting, suspects, alone = suspects, deque(), True
            else:
                return

    def fill(self, waiting: deque[RunTask], alone: bool) -> None:
        """Send tasks to workers with a free thread; the first job of a worker is to start."""
        busy = Counter(job.worker for job in self.jobs)
        for worker, threads in list(self.threads.items()):
            for _ in range(busy[worker], threads if worker in self.ready else 1):
                if not waiting or (alone and self._is_running()):
                    return
                if worker not in self.ready:
                    self._send(None, worker, prepare_worker, self.driver)
                elif self._send(waiting[0], worker, work, waiting[0]):
                    waiting.popleft()

    def end(self, job: Job, outcome: Outcome | None) -> None:
        """End a job that did not finish (None: its worker died)."""
        self.withdraw(job)
        if job.task is None:
            self.start_failed(job.worker)
        else:
            self._ended.append((job.task, outcome))

    def run_again(self, job: Job) -> None:
        """Withdraw a task to run it again; this does not count as a failure of it."""
        self.withdraw(job)
        if job.task is not None:
            self._again.append(job.task)

    def withdraw(self, job: Job) -> None:
        self.jobs.remove(job)

    def stop(self, workers: set[Any]) -> None:
        """Kill workers; their tasks run again."""
        for job in [job for job in self.jobs if job.worker in workers]:
            self.run_again(job)
        self.ready -= workers
        self.kill(workers)

    def abandon(self) -> None:
        """Stop the workers whose tasks nobody waits for any more."""
        if busy := {job.worker for job in self.jobs if job.task is not None}:
            self.stop(busy)
        self._again.clear()
        self._ended.clear()

    def start_failed(self, worker: Any) -> None:
        self.failures[worker] += 1
        if self.failures[worker] == STARTS:
            raise UsageError(
                f"worker processes cannot be started: {STARTS} in a row ended or hung before they were ready "
                f"(out of memory?); {RESUME_HINT}"
            )

    def _is_running(self) -> bool:
        return any(job.task for job in self.jobs)

    def _send(self, task: RunTask | None, worker: Any, function: Any, argument: Any) -> bool:
        future = self.submit(worker, function, argument)
        if future is None:
            return False
        future.add_done_callback(lambda _: self._wake.set())
        self.clock.tick()
        self.jobs.append(Job(task, worker, future, self.clock.seconds))
        return True

    def _wait(self) -> None:
        """Wait a moment until a job is done, handle those that are, and stop those that take too long."""
        self._wake.wait(TICK)
        self._wake.clear()
        self.clock.tick()
        for job in [job for job in self.jobs if job.future.done()]:
            try:
                outcome = job.future.result(timeout=PATIENCE)
            except Exception as error:
                self.fail(job, error)
                continue
            self.jobs.remove(job)
            if job.task is None:
                self.ready.add(job.worker)
            else:
                self._ended.append((job.task, outcome))
                self.failures.clear()
        seconds, now = self.limit.seconds, self.clock.seconds
        late = [job for job in self.jobs if now - job.since > (START_SECONDS if job.task is None else seconds)]
        for job in late:
            self.end(job, failed_outcome(f"stopped after {seconds:g} s, the time limit of a point (timeout)", seconds))
        if late:
            self.stop({job.worker for job in late})


def failed_outcome(reason: str, seconds: float = 0.0) -> Outcome:
    return Outcome("failed", reason, {}, seconds)


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
    with restored_environment("PYTHONWARNINGS"):
        if not sys.warnoptions:
            os.environ["PYTHONWARNINGS"] = "ignore"
        tracker.ensure_running()


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
