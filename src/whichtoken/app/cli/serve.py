"""whichtoken serve: the workbench in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.app.cli.options import OutFolder, value, whole
from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.files import DEFAULT_FOLDER


def serve(
    out: OutFolder = DEFAULT_FOLDER,
    port: Annotated[int, whole("P", "Port to listen on; 0 for any free port.")] = 8765,
    host: Annotated[
        str, value("ADDRESS", "Address to listen on; if other machines can reach it, a token is needed.")
    ] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the workbench in the browser.")] = False,
) -> None:
    """Start the workbench: claims, planner, your data, training and transformers, live in your browser.

    By default only this machine can reach it. With another --host, the printed link contains a secret token.

    The connection is not encrypted: use it in a trusted network, or through ssh -L.

    Ctrl-C stops it. Runs are stored in --out, as `whichtoken reproduce` stores them, and can be resumed.

    Examples:

      whichtoken serve --open

      whichtoken serve --out whichtoken-output --port 8888
    """
    if not 0 <= port <= 65535:
        raise UsageError("{port} is out of range; give a number from 0 to 65535", port=port)
    with needed_by("the workbench"):
        # starlette needs it for the first form
        import python_multipart  # noqa: F401

        from whichtoken.app.workbench.serving import run_server
    from whichtoken.app.workbench.settings import ServerSettings

    run_server(ServerSettings.at(out, host, port), open_browser)
