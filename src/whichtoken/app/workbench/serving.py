"""The server: the application, which listens until Ctrl-C and closes connections that make no progress."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

import whichtoken
from whichtoken.app.workbench import claims, data, dynamics, inspect, job_pages, planner
from whichtoken.app.workbench.jobs import Jobs
from whichtoken.app.workbench.middleware import SecurityMiddleware
from whichtoken.app.workbench.model_store import ModelStore
from whichtoken.app.workbench.pages import ERRORS
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.app.workbench.uploads import Uploads
from whichtoken.app.workbench.workers import Worker
from whichtoken.errors import UsageError

CHECK_SECONDS = 10.0  # between two checks of a connection
LEAST_BYTES = 20_000  # of a body that must arrive between two checks
MOST_CONNECTIONS = 500
PAGES = (claims, job_pages, planner, data, dynamics, inspect)
FOLDERS = ("app", "workbench", "static"), ("display", "assets")
STOP_SECONDS = 3  # for open pages to close their streams


class PackagedFiles(StaticFiles):
    """Files of the package; a browser caches them and asks whether they have changed."""

    def __init__(self) -> None:
        package = Path(whichtoken.__file__).parent
        super().__init__(directory=package.joinpath(*FOLDERS[0]), follow_symlink=False)
        self.all_directories = [package.joinpath(*folder) for folder in FOLDERS]

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers["cache-control"] = "no-cache"
        return answer


def create_app(settings: ServerSettings) -> Starlette:
    """The workbench of one folder, as an ASGI application.

    Parameters
    ----------
    settings : ServerSettings
        Folder, address and token.

    Returns
    -------
    Starlette
        The application; it starts nothing before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for part in (app.state.worker, app.state.slow_worker, app.state.jobs, app.state.uploads):
            part.close()

    routes = [route for page in PAGES for route in page.routes]
    app = Starlette(
        routes=[*routes, Mount("/static", app=PackagedFiles())],
        exception_handlers=ERRORS,
        middleware=[Middleware(SecurityMiddleware, settings=settings)],
        lifespan=lifespan,
    )
    app.state.settings, app.state.uploads, app.state.stopping = settings, Uploads(), lambda: False
    app.state.worker, app.state.slow_worker, app.state.designs = Worker(kept=4096), Worker(), planner.DEFAULT_DESIGNS
    app.state.jobs, app.state.models = Jobs(settings.home / "jobs"), ModelStore((settings.home / "models").absolute())
    return app


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which closes connections that make no progress."""

    check_seconds = CHECK_SECONDS
    _received = _drained = 0
    _waiting_for: tuple[str, Any, int, int] | None = None
    _next_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.opened = time.monotonic()
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_longest_waiting()
        self._next_check = self.loop.call_later(self.check_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        self._drained += 1
        super().resume_writing()

    def end(self) -> None:
        """Close the connection; with an answer in its buffer, `close` would wait for a client that does not read."""
        self.connections.discard(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            # what the system still has to send arrives
            self.transport.close()

    def _check(self) -> None:
        before, self._waiting_for = self._waiting_for, self._client_turn()
        now = self._waiting_for
        # the client had the same thing to do at both checks, and has made no progress
        if now is not None and before is not None and before[:3] == now[:3] and now[3] <= before[3]:
            self.end()
        else:
            self._next_check = self.loop.call_later(self.check_seconds, self._check)

    def _client_turn(self) -> tuple[str, Any, int, int] | None:
        """What the client has to do next, for which request, and its progress; None if it is the server's turn."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            return "read", self.cycle, self._drained, -unread
        if self.conn.their_state is h11.IDLE:
            return "ask", self.cycle, 0, 0
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            # once the answer is complete, nobody waits for the rest of the body
            return "send", self.cycle, 0, 0 if self.cycle.response_complete else self._received // LEAST_BYTES
        return None

    def _close_longest_waiting(self) -> None:
        """Close the connection that has waited longest for a whole request; those with one stay."""
        others = [one for one in self.connections if isinstance(one, TimedProtocol) and one is not self]
        idle = [one for one in others if one.conn.their_state is h11.IDLE]
        sending = [one for one in others if one.conn.their_state is h11.SEND_BODY]
        if idle or sending:
            min(idle or sending, key=lambda one: one.opened).end()


def run_server(settings: ServerSettings, open_browser: bool = False) -> None:
    """Serve the workbench: print its address, and return after Ctrl-C."""
    # for every process that is started: none may import a module of the working folder
    os.environ["PYTHONSAFEPATH"] = "1"
    with closing(_socket(settings)) as listening:
        _serve(replace(settings, port=listening.getsockname()[1]), listening, open_browser)


def _serve(settings: ServerSettings, listening: socket.socket, open_browser: bool) -> None:
    app, note = create_app(settings), ""
    try:
        app.state.models.add_movie_model()
    except UsageError:
        if not settings.out.is_dir():
            raise
        note = (
            f"note: {settings.out} cannot be written; what is in it is shown, but nothing can be run, trained or "
            "inspected; name another folder with --out"
        )
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=TimedProtocol, log_level="warning", access_log=False, server_header=False, date_header=True,
            limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=15, timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=64_000, ws="none", proxy_headers=False,
        )
    )  # fmt: skip
    print(f"workbench: {settings.link}\nCtrl-C stops it; what has been computed is kept.", flush=True)
    if note:
        print(note, file=sys.stderr, flush=True)
    if open_browser:
        webbrowser.open(settings.link)
    # streams ask for this, and end in time
    app.state.stopping = lambda: server.should_exit
    with _stop_with_terminal(server), suppress(KeyboardInterrupt):
        server.run([listening])


@contextmanager
def _stop_with_terminal(server: uvicorn.Server) -> Iterator[None]:
    """Stop as after Ctrl-C when the terminal is closed, unless the server was started with `nohup`."""

    def stop(*_: object) -> None:
        server.should_exit = True

    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _socket(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        # before the link is printed, so that a browser that opens it at once is answered
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            sentence = f"port {settings.port} is in use; give another one with --port, or 0 for any free port"
        elif error.errno == errno.EACCES:
            sentence = f"port {settings.port} is reserved; give one above 1023 with --port"
        else:
            reason = (error.strerror or str(error)).lower()
            sentence = f"cannot listen on {settings.host} ({reason}); give an address of this machine"
        raise UsageError(sentence) from error
    return listening
