"""Listening, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import webbrowser
from contextlib import suppress

import uvicorn

from whichtoken.errors import UsageError
from whichtoken.workbench.app import create_app
from whichtoken.workbench.data_room import starting_jobs
from whichtoken.workbench.settings import ServerSettings

MOST_CONNECTIONS = 500
STOP_SECONDS = 3  # that open pages have to let go of their streams


def run_server(settings: ServerSettings, open_browser: bool = False) -> None:
    """Serve the workbench; says where, and returns after Ctrl-C."""
    listening = _socket(settings)
    port = listening.getsockname()[1]
    settings = ServerSettings(settings.out, settings.host, port, settings.token)
    app = create_app(settings)
    for asked in starting_jobs(app.state.shelf):
        app.state.jobs.start(asked)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, date_header=True,
            limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=15, timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=64_000, ws="none", proxy_headers=False,
        )
    )  # fmt: skip
    print(f"workbench: {settings.link}\nCtrl-C stops it; what has been computed is kept.", flush=True)
    if open_browser:
        webbrowser.open(settings.link)
    app.state.stopping = lambda: server.should_exit  # streams look, and end in time
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        server.run([listening])


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
