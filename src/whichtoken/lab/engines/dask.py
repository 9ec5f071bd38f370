"""A Dask cluster: an existing scheduler, or processes that are started on this machine for the run."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

from whichtoken.errors import UsageError, in_one_line
from whichtoken.extras import needed_by
from whichtoken.lab.engines.common import (
    PATIENCE,
    RESUME_HINT,
    START_SECONDS,
    TICK,
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
from whichtoken.lab.worker import worker_environment
from whichtoken.processes import restored_environment, safe_children

ANSWER_SECONDS = 10.0  # for a scheduler to answer at the start
LOSSES = 10  # times that the scheduler may be lost without a task finishing in between
ENGINE = "the dask engine"


class _SchedulerLost(Exception):  # noqa: N818
    """The scheduler does not answer."""


class Session(Workers):
    """The workers of a scheduler that somebody else started, by address; survives the loss of workers and of the scheduler."""

    def __init__(self, address: str, limit: TimeLimit) -> None:
        super().__init__(limit)
        self.name = f"the Dask scheduler at dask://{address}"
        self.hint = f"start some with 'dask worker {address}'"
        # seconds without any worker, at the start and later
        self.first_patience, self.patience = ANSWER_SECONDS, PATIENCE
        self._address = address
        self._client: Any = None
        self._stuck: set[str] = set()  # workers that hang and cannot be restarted
        self._looked = self._seen = 0.0  # when the workers were last listed, and when there was one

    @staticmethod
    def client_of(address: str) -> Any:
        """A client of the scheduler at an address."""
        # warnings about other versions of packages: the rows carry the version that matters
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _dask().Client(f"tcp://{address}", timeout=ANSWER_SECONDS, set_as_default=False)

    def open_client(self) -> Any:
        # Dask itself would wait longer, or read the answer of a web server as a size
        if not _greets(self._address):
            raise OSError
        return self.client_of(self._address)

    def repair(self) -> None:
        """Replace lost workers, if they are ours."""

    def connect(self) -> None:
        """Connect to the scheduler, and wait until it has a worker."""
        deadline = time.monotonic() + self.first_patience
        try:
            self._client = self.open_client()
            while not (workers := self._list_workers()):
                if time.monotonic() > deadline:
                    raise UsageError(f"{self.name} has no workers; {self.hint}")
                time.sleep(0.1)
        except (OSError, TimeoutError, _SchedulerLost) as error:
            raise UsageError(f"{self.name} does not answer; start it again") from error
        # a point is stopped by restarting its worker, which only a nanny can do
        bare = sum(not worker["nanny"] for worker in workers.values())
        if bare and self.limit.asked:
            raise UsageError(
                f"timeout needs workers with a nanny, which {bare} of the {len(workers)} workers of "
                f"{self.name} lack; start them without --no-nanny, or leave timeout out"
            )
        if bare:
            self.limit = TimeLimit(math.inf)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close(timeout=ANSWER_SECONDS)

    def fill(self, waiting: deque[RunTask], alone: bool) -> None:
        try:
            if self._client.status != "running":
                raise _SchedulerLost
            if alone or time.monotonic() - self._looked > TICK:
                self._look_for_workers()
            super().fill(waiting, alone)
        except _SchedulerLost:
            self._reconnect()

    def submit(self, worker: str, function: Any, argument: Any) -> Any:
        try:
            # pinned, so that its time begins now: a task that Dask places may wait for a worker
            return self._client.submit(function, argument, pure=False, workers=[worker], allow_other_workers=False)
        except Exception as error:
            raise _SchedulerLost from error

    def fail(self, job: Job, error: Exception) -> None:
        if job.future.status != "error":  # the worker died with the result, or the scheduler that knew of it is gone
            self.run_again(job)
        elif isinstance(error, _dask().KilledWorker):
            self.threads.pop(job.worker, None)
            self.end(job, None)
        elif job.task is None:
            raise UsageError(f"a worker of {self.name} cannot run whichtoken: {in_one_line(error)}")
        else:
            self.end(job, failed_outcome(in_one_line(error)))

    def withdraw(self, job: Job) -> None:
        super().withdraw(job)
        # loky needs no such call: it kills the process, and prints a traceback if the future was cancelled before
        with suppress(Exception):
            job.future.cancel()

    def kill(self, workers: set[Any]) -> None:
        try:
            self._client.restart_workers(list(workers), timeout=PATIENCE, raise_for_error=False)
        except Exception:  # it has no nanny, or is gone already
            self._stuck |= workers
        self._looked = -math.inf

    def _look_for_workers(self) -> None:
        """List the workers; a task whose worker is gone ended with it."""
        workers = self._list_workers()
        self.repair()
        self.ready &= workers.keys()
        for job in [job for job in self.jobs if job.worker not in workers]:
            self.end(job, None)
        if not self.threads and self.clock.seconds - self._seen > self.patience:
            raise UsageError(f"{self.name} has had no workers for {self.patience:.0f} s; {self.hint}; {RESUME_HINT}")

    def _list_workers(self) -> dict[str, Any]:
        """The scheduler's information on its workers, by address."""
        try:
            answer = self._client.sync(self._client.scheduler.identity, callback_timeout=self.patience)
        except Exception as error:
            raise _SchedulerLost from error
        workers: dict[str, Any] = answer["workers"]
        self.threads = {
            address: worker["nthreads"]
            for address, worker in workers.items()
            if worker["status"] == "running" and address not in self._stuck
        }
        self._looked = time.monotonic()
        if self.threads:
            self._seen = self.clock.seconds
        return workers

    def _reconnect(self) -> None:
        """Resume with a scheduler that comes back in time; it has forgotten the pending tasks.

        Dask's client reconnects by itself only where the connection broke, not after an orderly end of the scheduler.
        """
        for job in list(self.jobs):
            self.run_again(job)
        self.threads.clear()
        self.ready.clear()
        self.close()
        self.failures["scheduler"] += 1
        deadline = time.monotonic() + self.patience
        while self._client is None:
            if time.monotonic() > deadline or self.failures["scheduler"] > LOSSES:
                raise UsageError(f"{self.name} no longer answers; {RESUME_HINT}")
            try:
                self._client = self.open_client()
            except (OSError, TimeoutError):
                time.sleep(TICK)
        self._seen = self.clock.seconds


class OwnSession(Session):
    """The workers of a cluster that was started for this run."""

    def __init__(self, cluster: Any, limit: TimeLimit) -> None:
        super().__init__(cluster.scheduler_address, limit)
        self.name, self.hint = "the Dask cluster of this run", "is the machine out of memory?"
        self.driver = os.getpid()
        # workers that we started will come, however busy the machine is; others may never come
        self.first_patience, self.patience = START_SECONDS, 3 * START_SECONDS
        self._cluster = cluster
        self._size = len(cluster.worker_spec)

    def open_client(self) -> Any:
        return _dask().Client(self._cluster, timeout=START_SECONDS, set_as_default=False)

    def repair(self) -> None:
        """Replace nannies that gave up, as they do when a worker dies while it starts, or that Dask has dropped."""
        nannies, status = self._cluster.workers, _dask().Status
        for name, nanny in list(nannies.items()):  # Dask changes it in its own thread
            if nanny.status in (status.closed, status.failed):
                nannies.pop(name, None)
                self._cluster.loop.add_callback(nanny.close)
        if len(nannies) < self._size:
            self._cluster.scale(self._size)


class DaskEngine(Engine):
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

    @contextmanager
    def open(self, number: int) -> Iterator[Workers]:
        with silent_logs(), safe_children(), ExitStack() as stack:
            if self.address:
                session = Session(self.address, self.limit)
            else:
                session = OwnSession(stack.enter_context(_own_cluster(self.workers)), self.limit)
            stack.enter_context(closing(session)).connect()
            yield session


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


@contextmanager
def _own_cluster(workers: int) -> Iterator[Any]:
    """Processes for this run alone: on the loopback interface, with their own keys, without web pages."""
    ensure_open_files(workers)
    with needed_by(ENGINE):
        import cryptography  # noqa: F401  # for the keys
        import dask.config

    # now, because it would not ignore interrupts if Dask started it later
    start_resource_tracker(resource_tracker)
    # Nannies set the first kind of variables in this process too, before they start a worker, which sets the second itself.
    # numba reads its own whenever it compiles, and raises if the number of threads has changed since its first parallel loop.
    first, second = "distributed.nanny.pre-spawn-environ", "distributed.nanny.environ"
    environment = {first: dict(dask.config.get(first)), second: dict(dask.config.get(second))}
    for name, value in worker_environment().items():
        environment[second if name.startswith("NUMBA_") else first][name] = value
    settings = {
        **environment,
        # Dask always opens a port for web pages, even without a dashboard; without routes it serves nothing
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        # a worker may be slow to come back on a busy machine: Dask must not give it up before
        "distributed.deploy.lost-worker-timeout": START_SECONDS,
    }
    with restored_environment(*environment[first]), dask.config.set(settings):
        with children_ignore_interrupts():
            cluster = _start(workers)
        with cluster:
            yield cluster


def _start(workers: int) -> Any:
    """A cluster with all its workers; a failed start is tried again twice."""
    for last in (False, False, True):
        try:
            return _dask().LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                protocol="tls://",
                security=_dask().Security.temporary(),
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
def silent_logs() -> Iterator[None]:
    """Keep Dask's log of lost connections off the terminal; errors are raised where they matter."""
    _dask()  # creates its loggers
    known = logging.root.manager.loggerDict
    names = ["asyncio", *(name for name in known if name.startswith(("distributed", "tornado")))]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
