"""whichtoken list: the claims and their verdicts."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.app.cli.options import OutFolder
from whichtoken.files import DEFAULT_FOLDER


def list(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID|THEORY", help="A claim, to see its fields, presets and states, or a theory, to list its claims."
        ),
    ] = "",
    out: OutFolder = DEFAULT_FOLDER,
) -> None:
    """List the claims and their verdicts, in your folder and in the long runs on record.

    With the id of a claim, show what it says, its source, its fields and its states.

    Examples:

      whichtoken list mirror-descent

      whichtoken list mirror-descent/direction
    """
    from whichtoken.app.pages.terminal import print_claim, print_claims
    from whichtoken.lab.discovery import experiments, find

    if not id or id in {claim.theory for claim in experiments().values()}:
        print_claims(out, id)
    else:
        print_claim(find(id), out)
