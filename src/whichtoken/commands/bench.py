"""whichtoken bench: ours beside what a user would take instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.commands.options import new_file
from whichtoken.display.terminal import console, table
from whichtoken.files import write_text


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks to run; all by default.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            callback=new_file,
            help="Write the table as JSON, with machine, versions and date.",
        ),
    ] = None,
) -> None:
    """Compare whichtoken with what you would use instead: ratios, timed in one run."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from whichtoken.errors import unknown
    from whichtoken.lab.benchmark import benchmark_files, run_benchmark
    from whichtoken.lab.canonical import plain
    from whichtoken.machine import machine, part_versions

    for name in names or []:
        if name not in benchmark_files():
            raise unknown("benchmark", name, benchmark_files())
    out, records = console(), []
    for name in names or benchmark_files():
        rows = table("case", "what", "value", "target", "met", "detail", title=name)
        with out.status(f"{name} ..."):
            for measure in run_benchmark(name):
                bound = f"{'≥' if measure.at_least else '≤'} {measure.target:.4g}"
                met = "[green]yes[/]" if measure.met else "[red]no[/]"
                rows.add_row(measure.case, measure.what, f"{measure.value:.4g}", bound, met, measure.detail)
                records.append({"benchmark": name, **asdict(measure), "met": measure.met})
        out.print(rows)
    if json_file is not None:
        made = {"date": datetime.now(UTC).date().isoformat(), "machine": machine(), "versions": part_versions()}
        write_text(json_file, json.dumps({**made, "measures": plain(records)}, indent=1) + "\n")
