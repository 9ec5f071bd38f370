"""whichtoken stress: where does a claim stop holding?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import Engine, OutFolder, Workers, field_values, new_output, value
from whichtoken.display.terminal import say
from whichtoken.files import DEFAULT_FOLDER, write_text


def stress(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="Id of the claim, as 'whichtoken list' shows it.")],
    budget: Annotated[str, value("60s|10m|500rows", "Time limit of the search, or a number of rows.")] = "60s",
    fields: Annotated[
        list[str] | None, value("FIELD", "Field to change (repeatable); default: all.", "--field")
    ] = None,
    map_: Annotated[str, value("FIELD[,FIELD]", "Also draw a map over one or two fields.", "--map")] = "",
    set_: Annotated[
        list[str] | None, value("FIELD=VALUE", "Change a field of the default point (repeatable).", "--set")
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    out: OutFolder = DEFAULT_FOLDER,
    json_file: Annotated[Path | None, new_output("Write borders and counterexamples as JSON.", "--json")] = None,
) -> None:
    """Search a claim's parameters for the values at which it stops holding, and draw them.

    Only missing rows are computed, so a second search with a larger budget continues the first.

    Examples:

      whichtoken stress mirror-descent/direction --budget 2m

      whichtoken stress group-sparse/learning-rate --map rate,groups
    """
    from whichtoken.app.pages.borders import borders_as_lines, write_borders
    from whichtoken.lab import stress as search

    found = search(
        claim, budget, fields=fields, map_fields=[name.strip() for name in map_.split(",")] if map_ else (),
        overrides=field_values(set_ or []), engine=engine, workers=workers, out=out,
    )  # fmt: skip
    if json_file is not None:
        write_text(json_file, json.dumps(found.as_json(), indent=1))
    for line in borders_as_lines(found):
        say(line)
    say(f"page: {write_borders(found, out, ['whichtoken', *sys.argv[1:]])}")
