"""whichtoken reproduce: run claims and compare theory with measurement."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import Engine, OutFolder, Workers, field_values, new_output, value, whole
from whichtoken.display.terminal import suggest
from whichtoken.files import DEFAULT_FOLDER, write_text


def reproduce(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Claims to run; default: all.")] = None,
    preset: Annotated[str, value("quick|full|paper", "Size of the runs: quick, full or paper.")] = "quick",
    seeds: Annotated[int | None, whole("N", "Number of repeats of each point.")] = None,
    set_: Annotated[
        list[str] | None,
        value("FIELD=VALUE", "Change a field (repeatable); values with commas between them make a grid.", "--set"),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute stored results again.")] = False,
    engine: Engine = "local",
    workers: Workers = None,
    timeout: Annotated[
        str | None, value("SECONDS", "Time limit for one point; default: 1 h (quick), 6 h (full), 48 h (paper).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every verdict with its numbers.")] = False,
    out: OutFolder = DEFAULT_FOLDER,
    json_file: Annotated[Path | None, new_output("Write verdicts and rows as JSON.", "--json")] = None,
) -> None:
    """Check claims: simulate, predict and compare. Only missing rows are computed.

    Exit code 0: as expected; 1: a verdict changed, is missing or new, a claim is broken, or all its rows failed; 2: wrong usage.

    Examples:

      whichtoken reproduce mirror-descent/direction

      whichtoken reproduce mirror-descent/direction --seeds 20 --set p=1.5,2
    """
    from whichtoken.app.pages.terminal import print_faults, print_results
    from whichtoken.lab import reproduce as run
    from whichtoken.lab.results import JSON_VERSION

    results = run(
        ids, preset, overrides=field_values(set_ or []), seeds=seeds, fresh=fresh, engine=engine, workers=workers,
        timeout=timeout, out=out,
    )  # fmt: skip
    if json_file is not None:
        found = {"schema": JSON_VERSION, "experiments": [result.as_json() for result in results]}
        write_text(json_file, json.dumps(found, indent=1))
    print_results(results, verbose)
    folder = "" if out == DEFAULT_FOLDER else f" --out {shlex.quote(str(out))}"
    suggest(f"whichtoken report{folder}  (pages with figures)")
    unloaded = not ids and print_faults()
    if unloaded or any(
        result.changed or result.vanished or result.appeared or result.fault or (result.failed and not result.rows)
        for result in results
    ):
        raise typer.Exit(1)
