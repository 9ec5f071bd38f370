"""whichtoken serve: the workbench in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.commands.options import OutFolder, whole_number
from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.places import DEFAULT_FOLDER


def serve(
    out: OutFolder = DEFAULT_FOLDER,
    port: Annotated[int, typer.Option(metavar="P", parser=whole_number, help="Port; 0 takes any that is free.")] = 8765,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; any but this machine's own needs a token."),
    ] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Start the workbench: claims, planner, your data, training and transformers, live in your browser.

    It listens on this machine alone. With another --host, nobody gets in without the secret token in the printed link.

    The connection is not encrypted: use it in a network that you trust, or through ssh -L.

    Ctrl-C stops it. Runs are stored in --out, as `whichtoken reproduce` stores them, and can go on later.

    Examples:

      whichtoken serve --open

      whichtoken serve --out whichtoken-output --port 8888
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port} is out of range; give a number from 0 to 65535")
    with needed_by("the workbench"):
        import python_multipart  # noqa: F401  # starlette asks for it when the first form arrives

        from whichtoken.workbench.serving import run_server
    from whichtoken.workbench.settings import ServerSettings

    run_server(ServerSettings.at(out, host, port), open_browser)
