"""Where tasks run: processes on this machine, or a Dask cluster. Same tasks, same numbers, any number of workers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from whichtoken.errors import UsageError, unknown
from whichtoken.lab.plan import Task
from whichtoken.lab.worker import THREAD_VARIABLES, Outcome, work

ENGINES = ("local", "dask", "dask://host:port")
TRIES = 3  # a task whose worker dies this often is recorded as failed
CONNECT_SECONDS = 5


class Engine(Protocol):
    """Runs tasks and yields each with its outcome, in the order in which they finish."""

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]: ...


def parse_engine(name: str, workers: int | None = None) -> Engine:
    """The engine of this name: local, dask, or dask://host:port."""
    from loky import cpu_count

    workers = workers if workers is not None else cpu_count()
    if workers < 1:
        raise UsageError(f"workers={workers} must be at least 1")
    if name == "local":
        return LocalEngine(workers)
    if name == "dask":
        return DaskEngine(None, workers)
    if name.startswith("dask://"):
        return DaskEngine(_reachable(name), workers)
    raise unknown("engine", name, ENGINES)


class LocalEngine:
    """Processes on this machine; the death of one costs only the tasks that were in flight, which run again."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        waiting = deque(tasks)
        suspects: deque[Task] = deque()  # in flight when a worker died: run alone, so that a culprit is known
        deaths: dict[Task, int] = {}
        while waiting or suspects:
            lost: list[Task] = []
            queue, width = (suspects, 1) if suspects else (waiting, 2 * self.workers)
            for task, outcome in self._one_pool(queue, width):
                if outcome is None:
                    lost.append(task)
                else:
                    yield task, outcome
            for task in lost:
                deaths[task] = deaths.get(task, 0) + (1 if width == 1 else 0)
                if deaths[task] < TRIES:
                    suspects.append(task)
                else:
                    yield task, _worker_died()

    def _one_pool(self, queue: deque[Task], width: int) -> Iterator[tuple[Task, Outcome | None]]:
        """Work the queue with one pool until it is empty or a worker dies; None marks the tasks that died with it."""
        from concurrent.futures import FIRST_COMPLETED, Future, wait

        from loky import ProcessPoolExecutor
        from loky.process_executor import BrokenProcessPool

        environment = dict.fromkeys((*THREAD_VARIABLES, "NUMBA_NUM_THREADS"), "1")
        pool = ProcessPoolExecutor(
            min(self.workers, width, len(queue)), env=environment, initializer=_prepare_worker, initargs=(os.getpid(),)
        )
        flying: dict[Future[Outcome], Task] = {}
        try:
            while queue or flying:
                # A few tasks ahead keep every worker busy; not more, because all of them are lost with a worker.
                while queue and len(flying) < width:
                    task = queue.popleft()
                    flying[pool.submit(work, task)] = task
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    yield flying[future], future.result()
                    del flying[future]
        except BrokenProcessPool:
            for task in flying.values():
                yield task, None
        finally:
            pool.shutdown(kill_workers=True)


class DaskEngine:
    """An existing Dask scheduler, or a cluster of processes started on this machine for the run."""

    def __init__(self, address: str | None, workers: int) -> None:
        self.address = address
        self.workers = workers

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        with self._client() as (client, as_completed, killed):
            futures = {client.submit(work, task, pure=False): task for task in tasks}
            for future in as_completed(futures, loop=client.loop):
                try:
                    yield futures[future], future.result()
                except killed:
                    yield futures[future], _worker_died()

    @contextmanager
    def _client(self):  # type: ignore[no-untyped-def]
        try:
            from distributed import Client, KilledWorker, LocalCluster, as_completed
        except ImportError:
            raise UsageError("the dask engine needs Dask; install it with: pip install 'whichtoken[dask]'") from None
        if self.address is None:
            with (
                LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=self.workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
                ) as cluster,
                Client(cluster, set_as_default=False) as client,  # type: ignore[no-untyped-call]
            ):
                yield client, as_completed, KilledWorker
            return
        address = f"tcp://{self.address}"
        with Client(address, timeout=CONNECT_SECONDS, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            yield client, as_completed, KilledWorker


def _reachable(name: str) -> str:
    """The address behind dask://, once something answers there: a wrong one must be found before anything is written."""
    address = name.removeprefix("dask://")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {name}; start one with 'dask scheduler'") from error
    return address


def _worker_died() -> Outcome:
    return Outcome("failed", f"the worker died {TRIES} times while running this point (out of memory?)", {}, 0.0)


def _prepare_worker(driver: int) -> None:
    """Leave when the driver is gone, even by kill -9: an orphan would keep a core busy for nobody."""
    import loky.process_executor

    # loky takes the 300 MB that torch needs for a leak and replaces the worker, which then loads torch again
    loky.process_executor._MAX_MEMORY_LEAK_SIZE = 1 << 40

    def watch(alive: Callable[[], bool]) -> None:
        while alive():
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, args=(lambda: _exists(driver),), daemon=True).start()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
