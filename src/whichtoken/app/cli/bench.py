"""whichtoken bench: whichtoken beside the usual alternatives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whichtoken.app.cli.options import new_output, value
from whichtoken.display.terminal import console, suggest, table
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.lab.benchmark import Cases, Measure


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks to run; without a name, they are listed.")
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Run every benchmark; this takes hours.")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the benchmarks and how long they took on record.")
    ] = False,
    json_file: Annotated[
        Path | None,
        new_output("Write one table per benchmark as JSON, with machine, threads, versions and date.", "--json"),
    ] = None,
    case: Annotated[
        list[str] | None,
        value(
            "TEXT",
            "Run only cases whose name contains this (repeatable); --json keeps the cases that FILE already has.",
        ),
    ] = None,
) -> None:
    """Compare whichtoken with the usual alternatives, all measured in the same run.

    Examples:

      whichtoken bench

      whichtoken bench prompt-svm --json margins.json

      whichtoken bench bags --case musk1 --case elephant --json bags.json
    """
    from whichtoken.errors import UsageError, unknown
    from whichtoken.lab.benchmark import Cases, benchmark_files, seconds

    for name in names or []:
        if name not in benchmark_files():
            raise unknown("benchmark", name, benchmark_files())
    if list_only or not (names or all_of_them):
        _print_list()
        return
    out, tables = console(), list[dict[str, Any]]()
    for name in names or benchmark_files():
        # cases: the day on which each was run
        found: dict[str, Any] = {"name": name, "seconds": 0.0, "not_run": "", "cases": {}, "measures": []}
        found |= {**(_read_stored(json_file, name) if case else {}), "finished": False}
        wanted = Cases(case or ())
        tables.append(found)
        rows = table("case", "what", "value", "target", "met", "detail", title=name)
        try:
            with out.status(f"{name} ..."):
                found["seconds"] += seconds(partial(_run, found, wanted, rows, partial(_write, json_file, tables)))
        except UsageError as error:
            # a benchmark that was not asked for by name is skipped
            if names:
                raise
            found["not_run"] = str(error)
            out.print(f"{name} is not run: {error}")
        found["finished"] = not found["not_run"] and found["cases"].keys() >= wanted.every.keys()
        _write(json_file, tables)
        if found["measures"]:
            out.print(rows)


def _run(found: dict[str, Any], wanted: Cases, rows: Any, keep: Callable[[], None]) -> None:
    """Run the wanted cases; a long benchmark that is stopped keeps its results, with their days."""
    from whichtoken.lab.benchmark import run_benchmark

    old, new, today = found["measures"], list[Any](), datetime.now(UTC).date().isoformat()
    for measure in run_benchmark(found["name"], wanted):
        new.append(_as_row(measure, rows))
        renewed = {part["case"] for part in new}
        found["measures"] = [part for part in old if part["case"] not in renewed] + new
        found["cases"] |= dict.fromkeys(wanted.asked, today)
        keep()
    found["cases"] |= dict.fromkeys(wanted.asked, today)  # also a case without a number


def _print_list() -> None:
    import ast

    from whichtoken.lab.benchmark import benchmark_files, recorded_benchmark

    rows = table("name", "on record", "question")
    for name, file in benchmark_files().items():
        recorded = recorded_benchmark(name)
        assigned = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign))
        questions = [ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "QUESTION"]
        rows.add_row(name, f"{recorded['seconds'] / 60:.1f} min" if recorded else "not run", *questions)
    console().print(rows)
    suggest("whichtoken bench NAME", "whichtoken bench --all  (hours)")


def _as_row(measure: Measure, rows: Any) -> dict[str, Any]:
    """The measure as JSON, added to the rows to be shown."""
    from dataclasses import asdict

    bound = f"{'≥' if measure.at_least else '≤'} {measure.target:.4g}"
    met = "[green]yes[/]" if measure.met else "[red]no[/]"
    rows.add_row(measure.case, measure.what, f"{measure.value:.4g}", bound, met, measure.detail)
    beside = measure.beside and {**asdict(measure.beside), "result": measure.beside.result}
    return {**asdict(measure), "beside": beside, "met": measure.met}


def _read_stored(file: Path | None, name: str) -> dict[str, Any]:
    """What the file has on this benchmark."""
    stored = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {"benchmarks": []}
    return next((found for found in stored["benchmarks"] if found["name"] == name), {})


def _write(file: Path | None, tables: list[dict[str, Any]]) -> None:
    from whichtoken.lab.benchmark import PEERS
    from whichtoken.lab.canonical import plain
    from whichtoken.machine import machine, part_versions

    if file is None:
        return
    made = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "threads": "one for both sides unless a case says otherwise",
        "versions": part_versions(PEERS),
    }
    write_text(file, json.dumps({**made, "benchmarks": plain(tables)}, indent=1) + "\n")
