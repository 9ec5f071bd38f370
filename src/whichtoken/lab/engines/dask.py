"""A Dask cluster: an existing scheduler, or processes that are started on this machine for the run."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.lab.engines.common import (
    START_SECONDS,
    cannot_start,
    children_ignore_interrupts,
    ensure_handles,
    run_rounds,
    start_tracker,
)
from whichtoken.lab.engines.dask_session import ANSWER_SECONDS, Session
from whichtoken.lab.engines.limits import TimeLimit
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome, worker_environment
from whichtoken.processes import safe_children

CONFIGURATION: dict[str, Any] = {
    # Dask always opens a port for web pages, also without a dashboard; on it is then nothing to see and nothing to order
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # a worker that is slow to come back on a busy machine is not given up behind our back
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
            cluster = _Foreign(self.address) if self.address else stack.enter_context(_own_cluster(self.workers))
            session = stack.enter_context(Session(cluster, self.limit))
            yield from run_rounds(session.one_round, tasks)


def scheduler_address(name: str) -> str:
    """The host:port behind dask://, once a scheduler answers there: a wrong one must be found before anything is written."""
    address = name.removeprefix("dask://")
    if not _greets(address):
        raise UsageError(f"no Dask scheduler answers at {name}; start one with 'dask scheduler'")
    return address


def _greets(address: str) -> bool:
    """Whether a Dask scheduler listens there: it greets whoever connects, which web servers and silent ports do not."""
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


class _Foreign:
    """A scheduler that somebody else started."""

    driver = None

    def __init__(self, address: str) -> None:
        self.name = f"the Dask scheduler at dask://{address}"
        self.hint = f"start some with 'dask worker {address}'"
        self._address = address

    def connect(self) -> Any:
        if not _greets(self._address):  # Dask itself would wait longer, or take what a web server says for a size
            raise OSError
        with warnings.catch_warnings():  # about other versions of packages: the rows carry the one that matters
            warnings.simplefilter("ignore")
            return _dask().Client(f"tcp://{self._address}", timeout=ANSWER_SECONDS, set_as_default=False)

    def repair(self, present: set[Any]) -> None:
        """Leave it to those who started the workers."""


class _Own:
    """A cluster that was started for this run."""

    name = "the Dask cluster of this run"
    hint = "is the machine out of memory?"

    def __init__(self, cluster: Any) -> None:
        self.driver = os.getpid()
        self._cluster = cluster
        self._size = len(cluster.worker_spec)
        self._absent: dict[Any, float] = {}  # since when

    def connect(self) -> Any:
        return _dask().Client(self._cluster, timeout=START_SECONDS, set_as_default=False)

    def repair(self, present: set[Any]) -> None:
        """Replace nannies that left or gave up: they do when a worker dies while it starts."""
        from distributed import Status

        now, nannies = time.monotonic(), self._cluster.workers
        self._absent = {name: self._absent.get(name, now) for name in nannies if name not in present}
        for name, since in self._absent.items():
            if nannies[name].status in (Status.closed, Status.failed) or now - since > START_SECONDS:
                self._cluster.loop.add_callback(nannies.pop(name).close)
        if len(nannies) < self._size:
            self._cluster.scale(self._size)


@contextmanager
def _own_cluster(workers: int) -> Iterator[_Own]:
    """Processes that answer nobody but this run: on the loopback interface, with keys of their own, without web pages."""
    ensure_handles(workers)
    distributed = _dask()
    with needed_by(ENGINE):
        import cryptography  # noqa: F401  # for the keys
        import dask.config

    security = distributed.Security.temporary()

    start_tracker(resource_tracker)  # whoever starts it later lets interrupts through again
    early, late = _worker_environments()
    settings = {
        "distributed.nanny.pre-spawn-environ": {**dask.config.get("distributed.nanny.pre-spawn-environ"), **early},
        "distributed.nanny.environ": {**dask.config.get("distributed.nanny.environ"), **late},
    }
    with _restore_environment(), dask.config.set({**CONFIGURATION, **settings}):
        with children_ignore_interrupts():
            cluster = _start(distributed, n_workers=workers, security=security)
        with cluster:
            yield _Own(cluster)


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
    """A cluster all of whose workers came up; one that dies at its start costs another try."""
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
    """Keep what Dask logs of lost connections off the terminal: what matters of it is said in a sentence."""
    _dask()  # its loggers exist from here on
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
