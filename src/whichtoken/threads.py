"""One thread for small matrices, on which several threads wait for each other longer than they compute.

BLAS has one setting for the whole process, so callers are counted: the first caller limits it and the last one restores it,
in whichever threads they run. OpenMP has one setting for each thread, which is limited and restored in that thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

from whichtoken.errors import UsageError


class _Limit:
    """Libraries limited to one thread while there are callers."""

    def __init__(self) -> None:
        self.inside = 0
        self.before: dict[str, tuple[Any, int]] = {}  # by path: the library and its number of threads

    def enter(self, libraries: list[Any]) -> None:
        self.inside += 1
        # also libraries that were loaded after the first caller entered
        for library in libraries:
            if library.filepath not in self.before:
                self.before[library.filepath] = library, library.get_num_threads()
                _set_threads(library, 1)

    def leave(self) -> None:
        self.inside -= 1
        if self.inside == 0:
            self.restore()

    def restore(self) -> None:
        for library, threads in self.before.values():
            _set_threads(library, threads)
        self.before.clear()


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads from any thread: newer versions of threadpoolctl silently ignore all but one."""
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


class _Threads(threading.local):
    def __init__(self) -> None:
        self.limit = _Limit()


_lock = threading.Lock()
_process, _threads = _Limit(), _Threads()
_lost_openmp = False


@contextmanager
def one_thread() -> Iterator[None]:
    """A context with a single thread for BLAS and OpenMP; the old setting is restored when the last caller leaves.

    A library that is loaded inside is limited by the next call, nested or not. A forked child keeps only the limit of the
    thread that forked it.
    """
    mine = _threads.limit
    with _lock:
        shared, by_thread = _libraries(len(sys.modules))
        _process.enter(shared)
        mine.enter(by_thread)
    try:
        yield
    finally:
        with _lock:
            mine.leave()
            _process.leave()


def check_openmp() -> None:
    """Refuse compiled loops on threads in a child of a process that has used them: GNU OpenMP would end the child."""
    if _lost_openmp:
        raise UsageError(
            "this process was forked from one that had already trained on several threads, and cannot use threads itself; "
            "start processes by multiprocessing.get_context('spawn') or joblib, or fork before the first training"
        )


@lru_cache(maxsize=1)
def _libraries(modules: int) -> tuple[list[Any], list[Any]]:
    """Libraries with one setting, and those with one for each thread. The search is slow: repeated only after an import."""
    found = ThreadpoolController().lib_controllers
    openmp = [x for x in found if "openmp" in (x.user_api, getattr(x, "threading_layer", None))]
    return [x for x in found if x not in openmp], openmp


def _after_fork() -> None:
    """Only the thread that forked exists in the child: drop the limits of the others, and a lock that they may hold."""
    global _lock, _lost_openmp
    _lock = threading.Lock()
    _process.inside = _threads.limit.inside
    if _process.inside == 0:
        _process.restore()
    # numba has no threading layer before its first parallel loop
    with suppress(KeyError, AttributeError, ValueError):
        _lost_openmp = _lost_openmp or sys.modules["numba"].threading_layer() == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
