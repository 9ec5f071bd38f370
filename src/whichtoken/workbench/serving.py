"""Listening, until Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import uvicorn
from starlette.applications import Starlette

from whichtoken.errors import UsageError
from whichtoken.workbench.app import create_app
from whichtoken.workbench.settings import ServerSettings
from whichtoken.workbench.slow_clients import TimedProtocol

MOST_CONNECTIONS = 500
STOP_SECONDS = 3  # that open pages have to let go of their streams


def run_server(settings: ServerSettings, open_browser: bool = False) -> None:
    """Serve the workbench; says where, and returns after Ctrl-C."""
    os.environ["PYTHONSAFEPATH"] = "1"  # for every process that is started: none runs a module of the working folder
    with closing(_socket(settings)) as listening:
        port = listening.getsockname()[1]
        _serve(ServerSettings(settings.out, settings.host, port, settings.token), listening, open_browser)


def _serve(settings: ServerSettings, listening: socket.socket, open_browser: bool) -> None:
    app = create_app(settings)
    note = _add_model(app, settings)
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
    app.state.stopping = lambda: server.should_exit  # streams look, and end in time
    with _stopped_with_terminal(server), suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        server.run([listening])


def _add_model(app: Starlette, settings: ServerSettings) -> str:
    """Add the model that is there at the start; a folder that cannot be written is served as it is, with a note."""
    try:
        app.state.shelf.add_movie_model()
    except UsageError:
        if not settings.out.is_dir():
            raise
        return (
            f"note: {settings.out} cannot be written; what is in it is shown, but nothing can be run, trained or "
            "inspected; name another folder with --out"
        )
    return ""


@contextmanager
def _stopped_with_terminal(server: uvicorn.Server) -> Iterator[None]:
    """Stop as after Ctrl-C when the terminal is closed, unless `nohup` asks to stay."""

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
        listening.listen()  # before the link is printed: who opens it at once is heard
    except OSError as error:
        listening.close()
        raise UsageError(_why(settings, error)) from error
    return listening


def _why(settings: ServerSettings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} is in use; give another one with --port, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {settings.port} is reserved; give one above 1023 with --port"
    return (
        f"cannot listen on {settings.host} ({(error.strerror or str(error)).lower()}); give an address of this machine"
    )
