"""A Dask cluster: an existing scheduler, or processes that are started on this machine for the run."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
import warnings
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from queue import Empty, SimpleQueue
from typing import Any

from whichtoken.errors import UsageError, in_one_line
from whichtoken.extras import needed_by
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
from whichtoken.lab.worker import Outcome, prepare_worker, work, worker_environment
from whichtoken.processes import safe_children

ANSWER_SECONDS = 10.0  # for a scheduler to answer at the start
PATIENCE = 30.0  # seconds for a scheduler, or any worker, to come back
LOSSES = 10  # times that the scheduler may be lost without a task finishing in between


@dataclass
class _PendingTask:
    """A task that was sent to a worker; without a task, the job that prepares the worker."""

    task: RunTask | None
    worker: str
    future: Any
    since: float


class _SchedulerLost(Exception):  # noqa: N818
    """The scheduler does not answer."""


class Session:
    """Runs tasks on the workers of a scheduler; survives the loss of workers and of the scheduler."""

    def __init__(self, cluster: _Cluster, limit: TimeLimit) -> None:
        self._cluster = cluster
        # workers that we started will come, however busy the machine is; others may never come
        self._first_patience, self._patience = (
            (ANSWER_SECONDS, PATIENCE) if cluster.driver is None else (START_SECONDS, 3 * START_SECONDS)
        )
        self._limit = limit
        self._client: Any = None
        self._pending: dict[str, _PendingTask] = {}  # by the key that Dask gave
        self._completed: SimpleQueue[str] = SimpleQueue()  # keys
        self._again: list[RunTask] = []  # to run again, through no fault of their own
        self._ended: list[TaskEnd] = []
        self._threads: dict[str, int] = {}  # number of threads of each worker that takes tasks
        self._ready: set[str] = set()  # workers that have loaded the experiments
        self._stuck: set[str] = set()  # workers that hang and cannot be restarted
        self._clock = AwakeClock()
        self._looked = self._seen = 0.0  # when the workers were last listed, and when there was one
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
        except (OSError, TimeoutError, _SchedulerLost) as error:
            self._close()
            raise UsageError(f"{self._cluster.name} does not answer; start it again") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def one_round(self, tasks: deque[RunTask], alone: bool) -> Iterator[TaskEnd]:
        """Run the tasks of the queue, with all workers or (alone) one at a time."""
        while tasks or self._again or any(pending.task for pending in self._pending.values()):
            try:
                tasks.extendleft(self._again)
                self._again.clear()
                self._list_workers(now=alone)
                self._fill(tasks, alone)
                yield from self._drain()  # only now: no worker waits while a row is stored
                self._collect()
                self._clock.tick()
                self._stop_late()
            except _SchedulerLost:
                self._reconnect()
        yield from self._drain()

    def _drain(self) -> Iterator[TaskEnd]:
        while self._ended:
            yield self._ended.pop()

    def _fill(self, tasks: deque[RunTask], alone: bool) -> None:
        """Send tasks to workers with a free thread; the first job of a worker is to load the experiments."""
        busy = Counter(pending.worker for pending in self._pending.values())
        for worker, threads in self._threads.items():
            if worker not in self._ready:
                if not busy[worker]:
                    self._send(None, worker, prepare_worker, self._cluster.driver)
                continue
            for _ in range(busy[worker], threads):
                if not tasks or (alone and any(pending.task for pending in self._pending.values())):
                    return
                self._send(tasks[0], worker, work, tasks[0])
                tasks.popleft()

    def _send(self, task: RunTask | None, worker: str, function: Any, argument: Any) -> None:
        try:
            future = self._client.submit(function, argument, pure=False, workers=[worker], allow_other_workers=False)
            future.add_done_callback(lambda ended: self._completed.put(ended.key))
        except Exception as error:
            raise _SchedulerLost from error
        self._clock.tick()
        self._pending[future.key] = _PendingTask(task, worker, future, self._clock.seconds)

    def _collect(self) -> None:
        """Handle completed tasks: wait a moment for the first, then take only those that are there."""
        seconds = TICK
        with suppress(Empty):
            while True:
                pending = self._pending.pop(self._completed.get(timeout=seconds), None)
                if pending is not None:
                    self._complete(pending)
                    seconds = 0.0

    def _complete(self, pending: _PendingTask) -> None:
        from distributed import KilledWorker

        task, status = pending.task, pending.future.status
        error: Any = None
        try:
            if status == "finished" and task is not None:
                self._ended.append((task, pending.future.result(timeout=PATIENCE)))
                self._losses = 0
            elif status == "error":
                error = pending.future.exception(timeout=PATIENCE)
        except Exception:  # the worker died with the result, or the scheduler is gone
            status = "cancelled"
        if status == "finished":
            if task is None:
                self._ready.add(pending.worker)
        elif status != "error":  # cancelled: the scheduler that knew of it is gone
            self._run_again(pending)
        elif isinstance(error, KilledWorker):
            self._threads.pop(pending.worker, None)
            self._end(pending, None)
        elif task is None:
            raise UsageError(f"a worker of {self._cluster.name} cannot run whichtoken: {in_one_line(error)}")
        else:
            self._end(pending, Outcome("failed", in_one_line(error), {}, 0.0))

    def _end(self, pending: _PendingTask, outcome: Outcome | None) -> None:
        """End a task that did not finish (None: its worker died)."""
        with suppress(Exception):
            pending.future.cancel()
        if pending.task is not None:
            self._ended.append((pending.task, outcome))

    def _run_again(self, pending: _PendingTask) -> None:
        """Withdraw a task to run it again; this does not count as a failure of it."""
        with suppress(Exception):
            pending.future.cancel()
        if pending.task is not None:
            self._again.append(pending.task)

    def _stop_late(self) -> None:
        """Restart the workers whose task takes too long; their other tasks run again."""
        now = self._clock.seconds
        limits = {key: START_SECONDS if one.task is None else self._limit.seconds for key, one in self._pending.items()}
        late = [self._pending.pop(key) for key, limit in limits.items() if now - self._pending[key].since > limit]
        for pending in late:
            self._end(pending, timed_out(self._limit.seconds))
        if late:
            self._restart({pending.worker for pending in late})

    def _restart(self, workers: set[str]) -> None:
        for key, pending in list(self._pending.items()):
            if pending.worker in workers:
                self._run_again(self._pending.pop(key))
        try:
            self._client.restart_workers(list(workers), timeout=PATIENCE, raise_for_error=False)
        except Exception:  # it has no nanny, or is gone already
            self._stuck |= workers
        self._ready -= workers
        self._list_workers(now=True)

    def _list_workers(self, now: bool = False) -> None:
        """List the workers; a task whose worker is gone ended with it."""
        if self._client.status != "running":
            raise _SchedulerLost
        if not now and time.monotonic() - self._looked < TICK:
            return
        workers = self._workers()
        self._cluster.repair({worker["name"] for worker in workers.values()})
        self._ready &= workers.keys()
        for key, pending in list(self._pending.items()):
            if pending.worker not in workers:
                self._end(self._pending.pop(key), None)
        if not self._threads and self._clock.seconds - self._seen > self._patience:
            raise UsageError(
                f"{self._cluster.name} has had no workers for {self._patience:.0f} s; {self._cluster.hint}; {RESUME_HINT}"
            )

    def _workers(self) -> dict[str, Any]:
        """The scheduler's information on its workers, by address."""
        try:
            answer = self._client.sync(self._client.scheduler.identity, callback_timeout=self._patience)
        except Exception as error:
            raise _SchedulerLost from error
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
                f"timeout needs workers with a nanny, which {bare} of the {len(workers)} workers of "
                f"{self._cluster.name} lack; start them without --no-nanny, or leave timeout out"
            )
        if bare:
            self._limit = TimeLimit(math.inf)

    def _reconnect(self) -> None:
        """Resume with a scheduler that comes back in time; it has forgotten the pending tasks."""
        while self._pending:
            self._run_again(self._pending.popitem()[1])
        self._threads.clear()
        self._ready.clear()
        self._close()
        self._losses += 1
        deadline = time.monotonic() + self._patience
        while self._client is None:
            if time.monotonic() > deadline or self._losses > LOSSES:
                raise UsageError(f"{self._cluster.name} no longer answers; {RESUME_HINT}")
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


CONFIGURATION: dict[str, Any] = {
    # Dask always opens a port for web pages, even without a dashboard; without routes it serves nothing
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # a worker may be slow to come back on a busy machine: Dask must not give it up
    "distributed.deploy.lost-worker-timeout": "1000 days",
}
ENGINE = "the dask engine"


class DaskEngine:
    """An existing Dask scheduler, or a cluster of processes started on this machine for the run.

    Parameters
    ----------
    address : str or None
        Address of the scheduler, as tcp://host:port; None starts a cluster on this machine.
    workers : int
        Processes to start, if there is no address.
    limit : TimeLimit
        How long a task may take.

    Examples
    --------
    >>> from whichtoken.lab.engines import DaskEngine, TimeLimit
    >>> engine = DaskEngine("tcp://cluster:8786", workers=8, limit=TimeLimit())  # doctest: +SKIP
    """

    def __init__(self, address: str | None, workers: int, limit: TimeLimit) -> None:
        self.address = address
        self.workers = workers
        self.limit = limit

    def map(self, tasks: Iterable[RunTask]) -> Generator[tuple[RunTask, Outcome]]:
        with _silent_logs(), safe_children(), ExitStack() as stack:
            cluster = _Cluster(self.address) if self.address else stack.enter_context(_own_cluster(self.workers))
            session = stack.enter_context(Session(cluster, self.limit))
            yield from run_rounds(session.one_round, tasks)


def scheduler_address(name: str) -> str:
    """The host:port behind dask://, after checking that a scheduler answers there, before anything is written."""
    address = name.removeprefix("dask://")
    if not _greets(address):
        raise UsageError(f"no Dask scheduler answers at {name}; start one with 'dask scheduler'")
    return address


def _greets(address: str) -> bool:
    """Whether a Dask scheduler listens there: it greets new connections, unlike web servers and silent ports."""
    host, _, port = address.rpartition(":")
    greeting = b""
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connection:
            while b"pickle-protocol" not in greeting and len(greeting) < 4096:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                received = connection.recv(4096)
                if not received:
                    return False
                greeting += received
    except (OSError, ValueError, OverflowError):
        return False
    return b"pickle-protocol" in greeting


class _Cluster:
    """A scheduler that somebody else started."""

    driver: int | None = None  # the process that started the workers for this run alone

    def __init__(self, address: str) -> None:
        self.name = f"the Dask scheduler at dask://{address}"
        self.hint = f"start some with 'dask worker {address}'"
        self._address = address

    def connect(self) -> Any:
        # Dask itself would wait longer, or read the answer of a web server as a size
        if not _greets(self._address):
            raise OSError
        # warnings about other versions of packages: the rows carry the version that matters
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _dask().Client(f"tcp://{self._address}", timeout=ANSWER_SECONDS, set_as_default=False)

    def repair(self, present: set[Any]) -> None:
        """Replace lost workers, if they are ours."""


class _OwnCluster(_Cluster):
    """A cluster that was started for this run."""

    def __init__(self, cluster: Any) -> None:
        self.name, self.hint = "the Dask cluster of this run", "is the machine out of memory?"
        self.driver = os.getpid()
        self._cluster = cluster
        self._size = len(cluster.worker_spec)
        self._absent: dict[Any, float] = {}  # since when

    def connect(self) -> Any:
        return _dask().Client(self._cluster, timeout=START_SECONDS, set_as_default=False)

    def repair(self, present: set[Any]) -> None:
        """Replace nannies that left or gave up, as they do when a worker dies while it starts."""
        from distributed import Status

        now, nannies = time.monotonic(), self._cluster.workers
        self._absent = {name: self._absent.get(name, now) for name in nannies if name not in present}
        for name, since in self._absent.items():
            if nannies[name].status in (Status.closed, Status.failed) or now - since > START_SECONDS:
                self._cluster.loop.add_callback(nannies.pop(name).close)
        if len(nannies) < self._size:
            self._cluster.scale(self._size)


@contextmanager
def _own_cluster(workers: int) -> Iterator[_OwnCluster]:
    """Processes for this run alone: on the loopback interface, with their own keys, without web pages."""
    ensure_open_files(workers)
    distributed = _dask()
    with needed_by(ENGINE):
        import cryptography  # noqa: F401  # for the keys
        import dask.config

    security = distributed.Security.temporary()

    # now, because it would not ignore interrupts if Dask started it later
    start_resource_tracker(resource_tracker)
    early, late = _worker_environments()
    settings = {
        "distributed.nanny.pre-spawn-environ": {**dask.config.get("distributed.nanny.pre-spawn-environ"), **early},
        "distributed.nanny.environ": {**dask.config.get("distributed.nanny.environ"), **late},
    }
    with _restore_environment(), dask.config.set({**CONFIGURATION, **settings}):
        with children_ignore_interrupts():
            cluster = _start(distributed, n_workers=workers, security=security)
        with cluster:
            yield _OwnCluster(cluster)


def _worker_environments() -> tuple[dict[str, str], dict[str, str]]:
    """Variables that a worker needs before Python starts, and those that it can set itself.

    Nannies set the first kind in this process too. numba reads its own variables whenever it compiles, and raises if the
    number of threads has changed since its first parallel loop; so its variables are of the second kind.
    """
    environment = worker_environment()
    late = {name: value for name, value in environment.items() if name.startswith("NUMBA_")}
    return {name: value for name, value in environment.items() if name not in late}, late


@contextmanager
def _restore_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _start(distributed: Any, **options: Any) -> Any:
    """A cluster with all its workers; a failed start is tried again twice."""
    for last in (False, False, True):
        try:
            return distributed.LocalCluster(
                **options,
                threads_per_worker=1,
                host="127.0.0.1",
                protocol="tls://",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                # the engine itself decides what runs again
                scheduler_kwargs={"allowed_failures": 0, "dashboard": False},
            )
        except Exception as error:
            if last:
                raise cannot_start("the workers of a Dask cluster", error) from error
    raise AssertionError


def _dask() -> Any:
    with needed_by(ENGINE):
        import distributed

    return distributed


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Keep Dask's log of lost connections off the terminal; errors are raised where they matter."""
    _dask()  # creates its loggers
    names = [
        "asyncio",
        *(name for name in logging.root.manager.loggerDict if name.startswith(("distributed", "tornado"))),
    ]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
