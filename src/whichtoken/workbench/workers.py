"""Processes for what takes longer than a page: plans, figures, tables, explanations.

The server itself computes nothing, so that pages open whatever is being computed. A worker answers one question after
another. Its queue is short, and forgets a question as soon as nobody waits for the answer. A process that takes too long is
ended; one that dies takes nothing with it but its answer.
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
from whichtoken.lab.engines.common import children_ignore_interrupts, start_tracker
from whichtoken.lab.worker import THREAD_VARIABLES, be_a_worker
from whichtoken.processes import safe_children

ANSWER_SECONDS = 120.0  # that one answer may take
MOST_QUESTIONS = 16  # that may wait for one worker
IDLE_SECONDS = 600  # after which a process gives its memory back
ENVIRONMENT = {
    **dict.fromkeys((*THREAD_VARIABLES, "NUMBA_NUM_THREADS"), "1"),
    "PYTHONFAULTHANDLER": "",  # a crash is a sentence on a page, not pages of stacks on the terminal
}


class Worker:
    """One process and the questions that wait for it; it starts with the first question.

    Parameters
    ----------
    seconds : float
        How long one answer may take.
    most : int
        How many questions may wait.
    kept : int
        How many answers are kept of those asked for with `keep`.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS, most: int = MOST_QUESTIONS, kept: int = 64) -> None:
        self.seconds, self.most, self.kept = seconds, most, kept
        self._turn = asyncio.Lock()
        self._questions: set[asyncio.Task[Any]] = set()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._pool: Any = None
        self._opening = threading.Lock()

    async def answer(self, request: Request, function: str, *arguments: Any, keep: bool = False) -> Any:
        """What a function says of the arguments, in the process; `keep` it for whoever asks the same.

        The function is given as "module:name": only the process imports what it needs.
        """
        key = (function, arguments)
        if keep and key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        found = await self._while_awaited(request, function, arguments)
        if keep:
            self._answers[key] = found
            if len(self._answers) > self.kept:
                self._answers.popitem(last=False)
        return found

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(kill_workers=True)

    async def _while_awaited(self, request: Request, function: str, arguments: tuple[Any, ...]) -> Any:
        if len(self._questions) >= self.most:
            raise HTTPException(503, f"{self.most} requests are being computed already; try again in a moment")
        begun = asyncio.Event()
        question = asyncio.ensure_future(self._in_turn(begun, function, arguments))
        self._questions.add(question)
        question.add_done_callback(self._forget)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({question, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not question.done():
                raise ClientDisconnect
            return question.result()
        finally:
            gone.cancel()
            if not begun.is_set():  # one that has begun holds the process until its end
                question.cancel()

    async def _in_turn(self, begun: asyncio.Event, function: str, arguments: tuple[Any, ...]) -> Any:
        from loky.process_executor import BrokenProcessPool

        async with self._turn:
            begun.set()
            future = await asyncio.to_thread(self._submit, function, arguments)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
            except BrokenProcessPool as error:
                await asyncio.to_thread(self.close)
                raise UsageError(
                    "this needs more memory than there is, or its process was killed; try smaller numbers or a smaller file"
                ) from error
            except TimeoutError as error:
                if future.done() and not future.cancelled():  # the function's own
                    raise
                await asyncio.to_thread(self.close)
                raise UsageError(
                    f"this takes longer than {self.seconds:g} s and was stopped; the command line has more time"
                ) from error

    def _submit(self, function: str, arguments: tuple[Any, ...]) -> Future[Any]:
        from loky.process_executor import BrokenProcessPool

        for _ in range(2):  # a process that died when it had nothing to do is replaced
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

    def _forget(self, question: asyncio.Task[Any]) -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # nobody may be left to hear of it


def _new_pool() -> Any:
    from loky import ProcessPoolExecutor
    from loky.backend import resource_tracker

    start_tracker(resource_tracker)
    return ProcessPoolExecutor(1, timeout=IDLE_SECONDS, env=ENVIRONMENT, initializer=_begin, initargs=(os.getpid(),))


def worker_of(request: Request) -> Worker:
    """The worker for what takes less than a second, as a rule."""
    found: Worker = request.app.state.worker
    return found


def slow_worker_of(request: Request) -> Worker:
    """The worker for what takes seconds; nobody who asks for less waits behind it."""
    found: Worker = request.app.state.slow_worker
    return found


def _call(function: str, arguments: tuple[Any, ...]) -> Any:
    return resolve_name(function)(*arguments)


def _begin(server: int) -> None:
    be_a_worker(server)


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
