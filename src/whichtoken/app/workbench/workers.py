"""Worker processes for what a page cannot wait for: plans, figures, tables, explanations.

The server itself computes nothing, so that pages open while something is computed. A worker runs one task after another.
Its queue is short, and drops a task when no client waits for the answer. A process that takes too long is killed; if one
dies, only its answer is lost.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from pkgutil import resolve_name
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from whichtoken.errors import UsageError
from whichtoken.lab.engines.common import children_ignore_interrupts, start_resource_tracker
from whichtoken.lab.worker import THREAD_VARIABLES, init_worker
from whichtoken.processes import safe_children

ANSWER_SECONDS = 120.0  # for one answer
MOST_TASKS = 16  # in the queue of one worker
IDLE_SECONDS = 600  # after which a process ends and frees its memory
ENVIRONMENT = {
    **dict.fromkeys((*THREAD_VARIABLES, "NUMBA_NUM_THREADS"), "1"),
    "PYTHONFAULTHANDLER": "",  # a crash is a sentence on a page, not pages of stacks on the terminal
}


class Worker:
    """One process and its queue of tasks; the first task starts the process.

    Parameters
    ----------
    seconds : float
        The longest time for one answer.
    most : int
        The largest number of tasks in the queue.
    kept : int
        The number of answers in the cache.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS, most: int = MOST_TASKS, kept: int = 64) -> None:
        self.seconds, self.most, self.kept = seconds, most, kept
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._pool: Any = None
        self._opening = threading.Lock()

    async def answer(self, request: Request, function: str, *arguments: Any, keep: bool = False) -> Any:
        """Call a function in the process and return its result; `keep` stores it for the same call.

        The function is given as "module:name", so that only the process imports it.
        """
        key = (function, arguments)
        if keep and key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        result = await self._run_while_connected(request, function, arguments)
        if keep:
            self._answers[key] = result
            if len(self._answers) > self.kept:
                self._answers.popitem(last=False)
        return result

    def close(self) -> None:
        """End the process; the next task starts another one."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(kill_workers=True)

    async def _run_while_connected(self, request: Request, function: str, arguments: tuple[Any, ...]) -> Any:
        if len(self._tasks) >= self.most:
            raise HTTPException(503, f"{self.most} requests are being computed already; try again in a moment")
        started = asyncio.Event()
        task = asyncio.ensure_future(self._run_in_turn(started, function, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            gone.cancel()
            # a task that has started keeps the process until its end
            if not started.is_set():
                task.cancel()

    async def _run_in_turn(self, started: asyncio.Event, function: str, arguments: tuple[Any, ...]) -> Any:
        from loky.process_executor import BrokenProcessPool

        async with self._turn:
            started.set()
            future = await asyncio.to_thread(self._submit, function, arguments)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
            except BrokenProcessPool as error:
                await asyncio.to_thread(self.close)
                raise UsageError(
                    "this needs more memory than is available, or its process was killed; try smaller numbers or a "
                    "smaller file"
                ) from error
            except TimeoutError as error:
                # the function itself may have raised it
                if future.done() and not future.cancelled():
                    raise
                await asyncio.to_thread(self.close)
                raise UsageError(
                    f"this takes longer than {self.seconds:g} s and was stopped; the command line has no such limit"
                ) from error

    def _submit(self, function: str, arguments: tuple[Any, ...]) -> Future[Any]:
        from loky.process_executor import BrokenProcessPool

        # a process that died while it was idle is replaced
        for _ in range(2):
            with self._opening, children_ignore_interrupts(), safe_children():
                if self._pool is None:
                    self._pool = _new_pool()
                pool = self._pool
            try:
                with children_ignore_interrupts(), safe_children():
                    future: Future[Any] = pool.submit(_call, function, arguments)
                    return future
            except BrokenProcessPool:
                self.close()
        raise UsageError("no process can be started for this; is the memory full?")

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # if the client has gone, nobody else retrieves the exception
        if not task.cancelled():
            task.exception()


def _new_pool() -> Any:
    from loky import ProcessPoolExecutor
    from loky.backend import resource_tracker

    start_resource_tracker(resource_tracker)
    options = {"timeout": IDLE_SECONDS, "env": ENVIRONMENT}
    return ProcessPoolExecutor(1, initializer=init_worker, initargs=(os.getpid(),), **options)


def worker_of(request: Request) -> Worker:
    """The worker for tasks that usually take less than a second."""
    found: Worker = request.app.state.worker
    return found


def slow_worker_of(request: Request) -> Worker:
    """The worker for tasks that take seconds."""
    found: Worker = request.app.state.slow_worker
    return found


def _call(function: str, arguments: tuple[Any, ...]) -> Any:
    return resolve_name(function)(*arguments)


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
