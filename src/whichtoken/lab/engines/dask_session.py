"""A connection to a Dask scheduler, and what its workers are busy with.

Every task is sent to one worker by name, as many at a time as that worker has threads. So it is known which task a
death or a delay is due to, no worker holds a queue that is lost with it, and 100 000 tasks take no memory.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.engines.common import GOES_ON, START_SECONDS, TICK, AwakeClock, Ended, timed_out
from whichtoken.lab.engines.limits import TimeLimit
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome, get_ready, work

ANSWER_SECONDS = 10.0  # for a scheduler to answer at the beginning
PATIENCE = 30.0  # for a scheduler, or any worker, to come back
LOSSES = 10  # of the scheduler in a row, without a task that ended in between


class Cluster(Protocol):
    """Where to connect to, how to speak of it, and which process its workers were started by for this run alone."""

    @property
    def name(self) -> str: ...
    @property
    def hint(self) -> str: ...
    @property
    def driver(self) -> int | None: ...
    def connect(self) -> Any: ...
    def repair(self, present: set[Any]) -> None: ...


@dataclass
class _Flight:
    """A task on its way; without a task it only finds out whether the worker is ready."""

    task: RunTask | None
    worker: str
    future: Any
    since: float


class _Lost(Exception):  # noqa: N818
    """The scheduler does not answer."""


class Session:
    """Runs tasks on the workers of a scheduler, and outlives the loss of either."""

    def __init__(self, cluster: Cluster, limit: TimeLimit) -> None:
        self._cluster = cluster
        # our own workers are on their way for sure, be the machine ever so busy; others may never come
        self._first_patience, self._patience = (
            (ANSWER_SECONDS, PATIENCE) if cluster.driver is None else (START_SECONDS, 3 * START_SECONDS)
        )
        self._limit = limit
        self._client: Any = None
        self._flights: dict[str, _Flight] = {}  # by the name that Dask gave
        self._landings: SimpleQueue[str] = SimpleQueue()
        self._again: list[RunTask] = []  # lost through no fault of their own
        self._ended: list[Ended] = []
        self._threads: dict[str, int] = {}  # of each worker that takes tasks
        self._ready: set[str] = set()  # workers that have loaded the experiments
        self._stuck: set[str] = set()  # workers that hang and cannot be restarted
        self._clock = AwakeClock()
        self._looked = self._seen = 0.0  # when the workers were last asked for, and when there was one
        self._losses = 0

    def __enter__(self) -> Session:
        deadline = time.monotonic() + self._first_patience
        try:
            self._client = self._cluster.connect()
            while not (workers := self._workers()):
                if time.monotonic() > deadline:
                    raise UsageError(f"{self._cluster.name} has no workers; {self._cluster.hint}")
                time.sleep(0.1)
            self._check_time_limit(workers)
        except (OSError, TimeoutError, _Lost) as error:
            self._close()
            raise UsageError(f"{self._cluster.name} does not answer; start it again") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def one_round(self, tasks: deque[RunTask], alone: bool) -> Iterator[Ended]:
        """Work the queue off, with all workers or with one."""
        while tasks or self._again or any(flight.task for flight in self._flights.values()):
            try:
                tasks.extendleft(self._again)
                self._again.clear()
                self._look(now=alone)
                self._fill(tasks, alone)
                yield from self._drain()  # after new tasks are on their way: no worker waits while a row is stored
                self._land()
                self._clock.tick()
                self._stop_late()
            except _Lost:
                self._reconnect()
        yield from self._drain()

    def _drain(self) -> Iterator[Ended]:
        while self._ended:
            yield self._ended.pop()

    def _fill(self, tasks: deque[RunTask], alone: bool) -> None:
        """Send tasks to the workers that have a thread free; a worker's first job is to get ready."""
        busy = Counter(flight.worker for flight in self._flights.values())
        for worker, threads in self._threads.items():
            if worker not in self._ready:
                if not busy[worker]:
                    self._send(None, worker, get_ready, self._cluster.driver)
                continue
            for _ in range(busy[worker], threads):
                if not tasks or (alone and any(flight.task for flight in self._flights.values())):
                    return
                self._send(tasks[0], worker, work, tasks[0])
                tasks.popleft()

    def _send(self, task: RunTask | None, worker: str, function: Any, argument: Any) -> None:
        try:
            future = self._client.submit(function, argument, pure=False, workers=[worker], allow_other_workers=False)
            future.add_done_callback(lambda ended: self._landings.put(ended.key))
        except Exception as error:
            raise _Lost from error
        self._clock.tick()
        self._flights[future.key] = _Flight(task, worker, future, self._clock.seconds)

    def _land(self) -> None:
        """Take what has ended: wait a moment for the first, then only for those that are there."""
        seconds = TICK
        with suppress(Empty):
            while True:
                flight = self._flights.pop(self._landings.get(timeout=seconds), None)
                if flight is not None:
                    self._end(flight)
                    seconds = 0.0

    def _end(self, flight: _Flight) -> None:
        if flight.future.status == "finished":
            self._finish(flight)
        elif flight.future.status == "error":
            self._fail(flight)
        else:  # cancelled: the scheduler that knew of it is gone
            self._withdraw(flight)

    def _finish(self, flight: _Flight) -> None:
        if flight.task is None:
            self._ready.add(flight.worker)
            return
        try:
            self._ended.append((flight.task, flight.future.result(timeout=PATIENCE)))
            self._losses = 0
        except Exception:  # the worker died with the result
            self._withdraw(flight)

    def _fail(self, flight: _Flight) -> None:
        from distributed import KilledWorker

        try:
            error = flight.future.exception(timeout=PATIENCE)
        except Exception:  # the scheduler is gone
            self._withdraw(flight)
            return
        if isinstance(error, KilledWorker):
            self._threads.pop(flight.worker, None)
            if flight.task is not None:
                self._ended.append((flight.task, None))
        elif flight.task is None:
            raise UsageError(f"a worker of {self._cluster.name} cannot run whichtoken: {in_one_line(error)}")
        else:
            self._ended.append((flight.task, Outcome("failed", in_one_line(error), {}, 0.0)))

    def _withdraw(self, flight: _Flight) -> None:
        """Forget a flight; its task runs again, and nothing is held against it."""
        with suppress(Exception):
            flight.future.cancel()
        if flight.task is not None:
            self._again.append(flight.task)

    def _stop_late(self) -> None:
        """Restart the workers whose task takes too long; what else they were busy with runs again."""
        now = self._clock.seconds
        late = {
            key: flight
            for key, flight in self._flights.items()
            if now - flight.since > (START_SECONDS if flight.task is None else self._limit.seconds)
        }
        if not late:
            return
        for key, flight in late.items():
            del self._flights[key]
            with suppress(Exception):
                flight.future.cancel()
            if flight.task is not None:
                self._ended.append((flight.task, timed_out(self._limit.seconds)))
        self._restart({flight.worker for flight in late.values()})

    def _restart(self, workers: set[str]) -> None:
        for key, flight in list(self._flights.items()):
            if flight.worker in workers:
                self._withdraw(self._flights.pop(key))
        try:
            self._client.restart_workers(list(workers), timeout=PATIENCE, raise_for_error=False)
        except Exception:  # without a nanny, or gone already
            self._stuck |= workers
        self._ready -= workers
        self._look(now=True)

    def _look(self, now: bool = False) -> None:
        """See which workers there are; a task on one that is gone ended with it."""
        if self._client.status != "running":
            raise _Lost
        if not now and time.monotonic() - self._looked < TICK:
            return
        workers = self._workers()
        self._cluster.repair({worker["name"] for worker in workers.values()})
        self._ready &= workers.keys()
        for key, flight in list(self._flights.items()):
            if flight.worker not in workers:
                del self._flights[key]
                with suppress(Exception):
                    flight.future.cancel()
                if flight.task is not None:
                    self._ended.append((flight.task, None))
        if not self._threads and self._clock.seconds - self._seen > self._patience:
            raise UsageError(
                f"{self._cluster.name} has had no workers for {self._patience:.0f} s; {self._cluster.hint}; {GOES_ON}"
            )

    def _workers(self) -> dict[str, Any]:
        """What the scheduler knows of its workers, by address."""
        try:
            answer = self._client.sync(self._client.scheduler.identity, callback_timeout=self._patience)
        except Exception as error:
            raise _Lost from error
        workers: dict[str, Any] = answer["workers"]
        self._threads = {
            address: worker["nthreads"]
            for address, worker in workers.items()
            if worker["status"] == "running" and address not in self._stuck
        }
        self._looked = time.monotonic()
        if self._threads:
            self._seen = self._clock.seconds
        return workers

    def _check_time_limit(self, workers: dict[str, Any]) -> None:
        """A point is stopped by restarting its worker, which only a nanny can do."""
        bare = sum(not worker["nanny"] for worker in workers.values())
        if bare and self._limit.asked:
            raise UsageError(
                f"--timeout needs workers with a nanny, which {bare} of the {len(workers)} workers of "
                f"{self._cluster.name} lack; start them without --no-nanny, or leave --timeout out"
            )
        if bare:
            self._limit = TimeLimit(math.inf)

    def _reconnect(self) -> None:
        """Go on with a scheduler that comes back in time; it knows nothing of what was in flight."""
        while self._flights:
            self._withdraw(self._flights.popitem()[1])
        self._threads.clear()
        self._ready.clear()
        self._close()
        self._losses += 1
        deadline = time.monotonic() + self._patience
        while self._client is None:
            if time.monotonic() > deadline or self._losses > LOSSES:
                raise UsageError(f"{self._cluster.name} no longer answers; {GOES_ON}")
            try:
                self._client = self._cluster.connect()
            except (OSError, TimeoutError):
                time.sleep(TICK)
        self._seen = self._clock.seconds

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close(timeout=ANSWER_SECONDS)
