"""whichtoken list: the claims and their verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import OutFolder, new_output
from whichtoken.files import DEFAULT_FOLDER, write_text


def list(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID|THEORY", help="A claim, to see its fields, presets and states, or a theory, to list its claims."
        ),
    ] = "",
    out: OutFolder = DEFAULT_FOLDER,
    json_file: Annotated[
        Path | None, new_output("Write the claims with their sources, presets and states on record as JSON.", "--json")
    ] = None,
) -> None:
    """List the claims and their verdicts, from your own runs and from the long runs on record.

    With the id of a claim, show what it says, its source, its fields and its states.

    Examples:

      whichtoken list mirror-descent

      whichtoken list mirror-descent/direction
    """
    from whichtoken.app.pages.terminal import print_claim, print_claims
    from whichtoken.lab.discovery import experiments, find

    theories = {claim.theory for claim in experiments().values()}
    chosen = [claim for claim in experiments().values() if id in ("", claim.theory)] or [find(id)]
    if json_file is not None:
        texts = ("id", "title", "claim", "source")
        listed = [
            {**{name: getattr(claim, name) for name in texts}, "presets": [*claim.presets], "states": claim.expected}
            for claim in chosen
        ]
        write_text(json_file, json.dumps({"claims": listed}, indent=1) + "\n")
    if not id or id in theories:
        print_claims(out, id)
    else:
        print_claim(chosen[0], out)
