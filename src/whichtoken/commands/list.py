"""whichtoken list: the claims, and what became of them."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.commands.options import OutFolder
from whichtoken.places import DEFAULT_FOLDER


def list_claims(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID|THEORY", help="One claim, with its fields, presets and states, or those of a theory."
        ),
    ] = "",
    out: OutFolder = DEFAULT_FOLDER,
) -> None:
    """List the claims and what became of them, here and in the long runs on record.

    Examples:

      whichtoken list mirror-descent

      whichtoken list mirror-descent/direction
    """
    from whichtoken.lab.discovery import experiments, find
    from whichtoken.report.listing import print_claim, print_claims

    if not id or id in {claim.theory for claim in experiments().values()}:
        print_claims(out, id)
    else:
        print_claim(find(id), out)
