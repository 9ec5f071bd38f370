"""whichtoken list: the claims, and what became of them."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.commands.options import OutFolder
from whichtoken.places import DEFAULT_FOLDER


def list_claims(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Show one experiment: its fields, presets and expected states.")
    ] = "",
    out: OutFolder = DEFAULT_FOLDER,
) -> None:
    """List the claims, their sources and their states so far."""
    from whichtoken.report.listing import print_claim, print_claims

    if id:
        from whichtoken.lab.discovery import find

        print_claim(find(id), out)
    else:
        print_claims(out)
