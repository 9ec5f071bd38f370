"""The command line: parses, calls, prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from whichtoken.cli_models import explain, fit, predict
from whichtoken.cli_options import check_apart, help_unless_asked, new_file, new_picture, number, read_file
from whichtoken.cli_options import whole_number as _whole_number
from whichtoken.display.notes import warnings_as_notes
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.files import write_text
from whichtoken.places import DEFAULT_FOLDER, LEDGER_NAME

if TYPE_CHECKING:
    from rich.console import Console

    from whichtoken.lab.results import Result

app = typer.Typer(
    help="Which token does softmax attention pick, why, and how surely.",
    epilog="Start with: whichtoken list, then whichtoken reproduce, then whichtoken report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the results and the report.")]
# where the theory's integrals are found in seconds and to some digits
PLANNED = {"--length": (2, 10_000), "--strength": (0, 100), "--prevalence": (1e-6, 1 - 1e-6), "--dim": (2, 10**9)}
INTERRUPTED = 130  # what typer makes of Ctrl-C
STATE_STYLE = {"agrees": "green", "disagrees": "red", "inconclusive": "yellow", "not-run": "dim"}


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        with warnings_as_notes():
            status = app(standalone_mode=False, prog_name="whichtoken")
    except UsageError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(error.format_message())
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    if status == INTERRUPTED:
        stored = "; what was finished is stored, the same command goes on from there" if "reproduce" in sys.argv else ""
        print(f"whichtoken: stopped{stored}", file=sys.stderr)
    sys.exit(status)


def _fail(message: str) -> NoReturn:
    print(f"whichtoken: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        import platform
        from importlib.metadata import version

        import whichtoken

        parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "torch", "scikit-learn"))
        print(f"whichtoken {whichtoken.__version__} (Python {platform.python_version()}, {parts})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions of whichtoken and its parts.")
    ] = False,
) -> None:
    """Which token does softmax attention pick, why, and how surely."""
    help_unless_asked(context)


@app.command("list")
def list_claims(
    id: Annotated[
        str, typer.Argument(metavar="[ID]", help="One experiment: its fields, presets, expected states.")
    ] = "",
    out: OutFolder = DEFAULT_FOLDER,
) -> None:
    """Claims, their sources and what became of them so far."""
    from whichtoken.lab.discovery import experiments, find

    if id:
        _print_experiment(find(id))
        return
    states = _states_so_far(out)
    table = _table("claim", "title", "source", "so far")
    for experiment in experiments().values():
        table.add_row(experiment.id, experiment.title, experiment.source, states.get(experiment.id, "[dim]not run[/]"))
    _console().print(table)


@app.command()
def reproduce(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Experiments; none means all.")] = None,
    preset: Annotated[str, typer.Option(metavar="quick|full|paper", help="Size of the study.")] = "quick",
    seeds: Annotated[int | None, typer.Option(metavar="N", parser=_whole_number, help="Repeats of each point.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field; a comma list makes a grid. Repeatable."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute also what is stored.")] = False,
    engine: Annotated[str, typer.Option(metavar="local|dask|dask://H:P", help="Where points run.")] = "local",
    workers: Annotated[
        int | None, typer.Option(metavar="N", parser=_whole_number, help="Worker processes; default: one per core.")
    ] = None,
    out: OutFolder = DEFAULT_FOLDER,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="Verdicts and rows as JSON.")
    ] = None,
) -> None:
    """Check claims: simulate, predict, judge. Computes what is missing and nothing else.

    Exit code 0: as expected; 1: a recorded verdict changed; 2: wrong usage.

    Examples:

      whichtoken reproduce mirror-descent/direction

      whichtoken reproduce mirror-descent/direction --preset full --seeds 20 --set p=1.5,2
    """
    from whichtoken.lab import reproduce as run

    results = run(
        ids, preset, set=_overrides(set_ or []), seeds=seeds, fresh=fresh, engine=engine, workers=workers, out=out
    )
    _print_verdicts(results)
    if json_file is not None:
        write_text(json_file, json.dumps({"experiments": [result.as_json() for result in results]}, indent=1))
    if any(result.changed for result in results):
        raise typer.Exit(1)


@app.command()
def report(out: OutFolder = DEFAULT_FOLDER) -> None:
    """Write the HTML report of the stored results; computes no point."""
    from whichtoken.report import write_report

    print(f"report: {write_report(out)}")


@app.command()
def export(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Experiments; none means all.")] = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.parquet|.csv", help="File to write.")] = ...,  # type: ignore[assignment]
    out: OutFolder = DEFAULT_FOLDER,
) -> None:
    """Write stored rows as a table: one column per field of the point, measured and predicted value."""
    from whichtoken.lab.export import export_rows

    print(f"{export_rows(out, ids or [], to)} rows: {to}")


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks; none means all.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="The table as JSON.")
    ] = None,
) -> None:
    """Measure ours beside what a user would take instead: ratios, timed in one run."""
    from dataclasses import asdict

    from whichtoken.errors import unknown
    from whichtoken.lab.benchmark import benchmark_files, run_benchmark
    from whichtoken.lab.canonical import plain

    for name in names or []:
        if name not in benchmark_files():
            raise unknown("benchmark", name, benchmark_files())
    console, records = _console(), []
    for name in names or benchmark_files():
        table = _table("case", "what", "value", "target", "met", "detail", title=name)
        with console.status(f"{name} ..."):
            for measure in run_benchmark(name):
                bound = f"{'≥' if measure.at_least else '≤'} {measure.target:.4g}"
                met = "[green]yes[/]" if measure.met else "[red]no[/]"
                table.add_row(measure.case, measure.what, f"{measure.value:.4g}", bound, met, measure.detail)
                records.append({"benchmark": name, **asdict(measure), "met": measure.met})
        console.print(table)
    if json_file is not None:
        write_text(json_file, json.dumps(plain(records), indent=1))


@app.command()
def plan(
    length: Annotated[int | None, typer.Option(metavar="L", parser=_whole_number, help="Tokens in a sequence.")] = None,
    signal_tokens: Annotated[
        int | None, typer.Option(metavar="R", parser=_whole_number, help="Tokens that carry the signal.")
    ] = None,
    strength: Annotated[
        float | None, typer.Option(metavar="THETA", parser=number, help="Signal in noise standard deviations.")
    ] = None,
    prevalence: Annotated[
        float | None, typer.Option(metavar="PI", parser=number, help="Share of positive sequences.")
    ] = None,
    dim: Annotated[int | None, typer.Option(metavar="D", parser=_whole_number, help="Dimension of a token.")] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="N", parser=_whole_number, help="Labelled sequences that you can have.")
    ] = None,
    target_error: Annotated[
        float | None, typer.Option(metavar="E", parser=number, help="Test error that you want.")
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=read_file,
            help="Pilot data to estimate the task from: .npz (tokens, labels), .csv, .tsv, .parquet.",
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=new_picture, help="Learning curves as .svg, .png or .pdf.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="The plan as JSON.")
    ] = None,
) -> None:
    """Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?

    A power analysis for attention and multiple-instance learning, from exact theory, before anything is trained.

    Examples:

      whichtoken plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 2000

      whichtoken plan --pilot bags.csv --target-error 0.05 --figure curve.png
    """
    from dataclasses import asdict

    check_apart({"--pilot": pilot}, {"--figure": figure, "--json": json_file})
    task = {
        "--length": length, "--signal-tokens": signal_tokens, "--strength": strength, "--prevalence": prevalence,
        "--dim": dim,
    }  # fmt: skip
    if pilot is None:
        _check_task(task, samples, target_error)
    for option, (least, most) in PLANNED.items():
        if (value := task[option]) is not None and not least <= value <= most:
            raise UsageError(f"{option} {value:g} is not planned for; give a number from {least:g} to {most:g}")

    from whichtoken.data.bag_files import read_bags
    from whichtoken.report.planning import forecast_rows, protocol, write_figure
    from whichtoken.theory import sparse_tokens

    try:
        planned = sparse_tokens.plan(
            length=length,
            signal_tokens=signal_tokens,
            strength=strength,
            prevalence=prevalence,
            dim=dim,
            samples=samples,
            target_error=target_error,
            pilot=read_bags(pilot) if pilot else None,
        )
    except ValueError as error:
        raise UsageError(_as_options(str(error))) from error
    except ArithmeticError as error:
        raise UsageError("these numbers are too extreme to compute with; choose more moderate ones") from error
    console = _console()
    table = _table("model", f"error at {planned.samples}", "error, unlimited", "samples for target", "separable up to")
    for line in forecast_rows(planned):
        table.add_row(*line)
    console.print(table)
    print(protocol(planned))
    for warning in planned.warnings:
        console.print(f"[yellow]note[/]: {warning}", highlight=False)
    if figure is not None:
        write_figure(planned, figure)
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(planned), indent=1))


app.add_typer(fit, name="fit")
app.command()(predict)
app.command()(explain)


def _check_task(task: Mapping[str, float | None], samples: int | None, target_error: float | None) -> None:
    """Refuse a plan that says too little."""
    missing = [option for option, value in task.items() if value is None]
    if missing:
        raise UsageError(f"plan needs {', '.join(missing)}, or a --pilot FILE to estimate the task from")
    if samples is None and target_error is None:
        raise UsageError("plan needs --samples N (what you can have) or --target-error E (what you want), or both")


def _as_options(sentence: str) -> str:
    """A sentence about arguments of the Python function with the names of the options: signal_tokens=0 is --signal-tokens 0."""
    names = "length|signal_tokens|strength|prevalence|dim|samples|target_error"
    return re.sub(rf"\b({names})=", lambda found: f"--{found[1].replace('_', '-')} ", sentence)


def _console() -> Console:
    from rich.console import Console

    # a file or a pipe has no width: do not break lines at 80
    return Console() if sys.stdout.isatty() else Console(width=200)


def _table(*columns: str, title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _overrides(settings: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for setting in settings:
        name, sign, value = (part.strip() for part in setting.partition("="))
        if not (name and sign and value):
            raise UsageError(f"--set '{setting}': write it as field=value, or field=value,value for a grid")
        if name in fields:
            raise UsageError(f"--set {name} is given twice; write --set {name}={fields[name]},{value} for a grid")
        fields[name] = value
    return fields


def _print_experiment(experiment: Any) -> None:
    from dataclasses import MISSING, fields

    from rich.markup import escape

    from whichtoken.lab.plan import field_types, make_plan, type_name

    console, types = _console(), field_types(experiment)
    title, claim, source = map(escape, (experiment.title, experiment.claim, experiment.source))
    console.print(f"[bold]{experiment.id}[/]  {title}\n\n{claim}\n[dim]{source}[/]\n")
    table = _table("field", "type", "default", "method")
    for field in fields(experiment.point_type):
        default = "required" if field.default is MISSING else str(field.default)
        table.add_row(
            field.name, type_name(types[field.name]), default, "yes" if field.name in experiment.method_fields else ""
        )
    console.print(table)
    for preset in experiment.presets:
        plan = make_plan(experiment, preset)
        console.print(f"[bold]{preset}[/]: {len(plan.points)} points, {len(plan.tasks)} rows")
        for code, state in experiment.expected.get(preset, {}).items():
            console.print(f"  {code}: [{STATE_STYLE[state]}]{state}[/]")


def _states_so_far(out: Path) -> dict[str, str]:
    """A short count of states by experiment, from the latest run of each."""
    from collections import Counter

    from whichtoken.lab.ledger import Ledger
    from whichtoken.lab.results import stored_results

    if not (out / LEDGER_NAME).is_file():
        return {}
    states: dict[str, str] = {}
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        for result in stored_results(ledger):
            counts = Counter(verdict.state for verdict in result.verdicts)
            text = ", ".join(f"[{STATE_STYLE[state]}]{n} {state}[/]" for state, n in counts.items())
            states.setdefault(result.id, f"{result.preset}: {text}")
    return states


def _print_verdicts(results: list[Result]) -> None:
    from rich.markup import escape

    console = _console()
    table = _table("verdict", "claim", "theory", "measured", "95 % interval", "state")
    for result in results:
        for verdict in result.verdicts:
            table.add_row(
                verdict.code,
                escape(verdict.claim) + (f" [dim]({escape(verdict.note)})[/]" if verdict.note else ""),
                f"{verdict.relation.replace('=', '')} {_number(verdict.theory)}".strip(),
                _number(verdict.measured),
                "" if verdict.low is None else f"{_number(verdict.low)} .. {_number(verdict.high)}",
                f"[{STATE_STYLE[verdict.state]}]{verdict.state}[/]",
            )
    console.print(table)
    for result in results:
        first = f"; first: {escape(result.rows.failed[0].message)}" if result.failed else ""
        console.print(
            f"{result.id} {result.preset}: {result.points} points, {result.failed} failed, "
            f"{result.seconds:.1f} s of computing{first}", highlight=False
        )  # fmt: skip
        for verdict in result.changed:
            console.print(f"[red]changed[/]: {verdict.code} was {result.expected(verdict)}, now {verdict.state}")
        for verdict in result.weakened:
            console.print(f"[yellow]warning[/]: {verdict.code} was agrees, now inconclusive")
        if len(result.package_versions) > 1:
            console.print(
                f"[yellow]warning[/]: {result.id} mixes rows of {', '.join(result.package_versions)}; see --fresh"
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
