"""The command line: parses, calls, prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from whichtoken.commands.inspect import inspect_model
from whichtoken.errors import UsageError
from whichtoken.places import DEFAULT_FOLDER, LEDGER_NAME

if TYPE_CHECKING:
    from rich.console import Console

    from whichtoken.lab.results import Result

app = typer.Typer(
    help="Which token does softmax attention pick, why, and how surely.",
    epilog="Start with: whichtoken list, then whichtoken reproduce, then whichtoken report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

fit = typer.Typer(help="Train on your own file and save a model folder; prints honest test metrics beside a baseline.")
app.add_typer(fit, name="fit", no_args_is_help=True)
app.command("inspect")(inspect_model)

OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the results and the report.")]
# typer carries its own copy of click, whose base exception is only reached through a public subclass
ParserError: type[Exception] = typer.BadParameter.__mro__[2]
INTERRUPTED = 130  # what typer makes of Ctrl-C
STATE_STYLE = {"agrees": "green", "disagrees": "red", "inconclusive": "yellow", "not-run": "dim"}


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        status = app(standalone_mode=False)
    except UsageError as error:
        _fail(str(error))
    except ParserError as error:
        _fail(error.format_message())  # type: ignore[attr-defined]
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    if status == INTERRUPTED:
        print("whichtoken: stopped; what was finished is stored, the same command goes on from there", file=sys.stderr)
    sys.exit(status)


def _fail(message: str) -> NoReturn:
    print(f"whichtoken: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        import platform
        from importlib.metadata import version

        import whichtoken

        parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "torch", "scikit-learn"))
        print(f"whichtoken {whichtoken.__version__} (Python {platform.python_version()}, {parts})")
        raise typer.Exit


def _whole_number(text: str) -> int:
    if not text.lstrip("-").isdigit():
        raise typer.BadParameter(f"'{text}' is not a whole number")
    return int(text)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions of whichtoken and its parts.")
    ] = False,
) -> None:
    """Which token does softmax attention pick, why, and how surely."""


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
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Verdicts and rows as JSON.")] = None,
) -> None:
    """Check claims: simulate, predict, judge. Computes what is missing and nothing else.

    Exit code 0: as expected; 1: a verdict on record turned round; 2: wrong usage.

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
        _write(json_file, json.dumps({"experiments": [result.as_json() for result in results]}, indent=1))
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
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The table as JSON.")] = None,
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
        _write(json_file, json.dumps(plain(records), indent=1))


@app.command()
def plan(
    length: Annotated[int | None, typer.Option(metavar="L", help="Tokens of a sequence.")] = None,
    signal_tokens: Annotated[int | None, typer.Option(metavar="R", help="Tokens that carry the signal.")] = None,
    strength: Annotated[
        float | None, typer.Option(metavar="THETA", help="Signal in noise standard deviations.")
    ] = None,
    prevalence: Annotated[float | None, typer.Option(metavar="PI", help="Share of positive sequences.")] = None,
    dim: Annotated[int | None, typer.Option(metavar="D", help="Dimension of a token.")] = None,
    samples: Annotated[int | None, typer.Option(metavar="N", help="Labelled sequences that you can have.")] = None,
    target_error: Annotated[float | None, typer.Option(metavar="E", help="Test error that you want.")] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Pilot data to estimate the task from: .npz (tokens, labels), .csv, .tsv, .parquet."
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Learning curves as .svg, .png or .pdf.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The plan as JSON.")] = None,
) -> None:
    """Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?

    A power analysis for attention and multiple-instance learning, from exact theory, before anything is trained.

    Examples:

      whichtoken plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 2000

      whichtoken plan --pilot bags.csv --target-error 0.05 --figure curve.png
    """
    from dataclasses import asdict

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
        raise UsageError(str(error)) from error
    console = _console()
    table = _table("model", f"error at {planned.samples}", "error, unlimited", "samples for target", "separable up to")
    for line in forecast_rows(planned):
        table.add_row(*line)
    console.print(table)
    print(protocol(planned))
    for warning in planned.warnings:
        console.print(f"[yellow]warning[/]: {warning}", highlight=False)
    if figure is not None:
        write_figure(planned, figure)
    if json_file is not None:
        _write(json_file, json.dumps(asdict(planned), indent=1))


DataFile = Annotated[Path, typer.Argument(metavar="DATA", help="Table: .csv, .tsv, .parquet or .jsonl.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")]
NewModel = Annotated[Path, typer.Option("--model", metavar="DIR", help="Model folder to write.")]
Separator = Annotated[str | None, typer.Option(metavar="SIGN", help="Separator of a .csv or .tsv, if unusual.")]
TestShare = Annotated[float, typer.Option(metavar="SHARE", help="Part of the rows kept for the test metrics.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the split and the training.")]


@fit.command("text")
def fit_text_file(
    data: DataFile,
    model: NewModel,
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels.")] = "label",
    groups: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Rows of one group stay on one side of every split.")
    ] = None,
    ngrams: Annotated[int, typer.Option(metavar="1|2|3", help="Also pairs, also triples of words.")] = 1,
    stemmer: Annotated[str | None, typer.Option(metavar="LANGUAGE", help="Snowball stemmer, such as english.")] = None,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The metrics as JSON.")] = None,
) -> None:
    """Classify documents, with the words that decide.

    Example: whichtoken fit text reviews.csv --text review --label sentiment --model reviews-model
    """
    from whichtoken.estimators.text_fits import fit_text

    report = fit_text(
        data, model, text=text, label=label, groups=groups, ngrams=ngrams, stemmer=stemmer, test_share=test_share,
        seed=seed, separator=separator, progress=sys.stderr.isatty(),
    )  # fmt: skip
    _print_fit(report, model, json_file)


@fit.command("bags")
def fit_bags_file(
    data: DataFile,
    model: NewModel,
    bag: Annotated[str, typer.Option(metavar="COLUMN", help="Column that says which bag a row belongs to.")] = "bag",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels of the bags.")] = "label",
    feature: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A feature; repeatable. Default: every other column.")
    ] = None,
    queries: Annotated[
        int, typer.Option(metavar="N", help="Queries of a class; with one, decisions are certified.")
    ] = 1,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The metrics as JSON.")] = None,
) -> None:
    """Classify bags of instances, one instance per row, with the instances that decide.

    Example: whichtoken fit bags molecules.csv --bag molecule --label active --model molecules-model
    """
    from whichtoken.estimators.table_fits import fit_bags

    report = fit_bags(
        data, model, bag=bag, label=label, features=feature or None, queries=queries, test_share=test_share, seed=seed,
        separator=separator,
    )  # fmt: skip
    _print_fit(report, model, json_file)


@fit.command("groups")
def fit_groups_file(
    data: DataFile,
    model: NewModel,
    groups: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Groups: an object of lists of columns.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="SIGN", help="A column's group is what stands before this sign in its name.")
    ] = None,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels.")] = "label",
    covariate: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column that is always kept; repeatable.")
    ] = None,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The metrics as JSON.")] = None,
) -> None:
    """Classify rows whose columns come in groups, with the groups that matter.

    Example: whichtoken fit groups cells.csv --prefix _ --label malignant --model cells-model
    """
    from whichtoken.estimators.table_fits import fit_groups, read_mapping

    if (groups is None) == (prefix is None):
        raise UsageError("give --groups FILE.json or --prefix SIGN, one of the two")
    report = fit_groups(
        data, model, groups=read_mapping(groups) if groups else str(prefix), label=label, covariates=covariate or (),
        test_share=test_share, seed=seed, separator=separator,
    )  # fmt: skip
    _print_fit(report, model, json_file)


@app.command()
def predict(
    model: ModelFolder,
    data: DataFile,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the texts, or of the bags; default text, or bag.")
    ] = None,
    separator: Separator = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.csv", help="File to write; default: print.")] = None,
) -> None:
    """Labels and probabilities of the rows of a file, as CSV."""
    from whichtoken.estimators.command import predict_file

    table = predict_file(model, data, column=column, separator=separator)
    text = table.to_csv(index=False)
    if to is None:
        print(text, end="")
    else:
        _write(to, text)


@app.command()
def explain(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="A text, in quotes.")] = "",
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="A text file, or a table.")] = None,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the texts, or of the bags; default text, or bag.")
    ] = None,
    separator: Separator = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page in colours.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Every number as JSON.")] = None,
) -> None:
    """Which tokens, instances of a bag, or groups of columns decided, and what would change it; exact, without sampling.

    Examples:

      whichtoken explain reviews-model "A wonderful film with a terrible end."

      whichtoken explain cells-model --file cells.csv

      whichtoken explain molecules-model --file molecules.csv --column molecule
    """
    from rich.markup import escape

    from whichtoken.estimators.command import explain_data

    explanations, shown = explain_data(model, text, file, column=column, separator=separator)
    if html is not None:
        _write(html, shown.as_html(explanations))
    if json_file is not None:
        _write(json_file, json.dumps([item.as_json() for item in explanations], ensure_ascii=False, indent=1))
    if html is None and json_file is None:
        console = _console()
        for item in explanations:
            console.print(shown.summary(item), highlight=False, markup=False, style="bold")
            console.print(shown.coloured(item))
            table = _table(*shown.HEADINGS)
            for line in shown.reason_lines(item):
                table.add_row(*map(escape, line))
            console.print(table)


def _print_fit(report: Any, folder: Path, json_file: Path | None) -> None:
    from dataclasses import asdict

    table = _table("model", "test accuracy", "test log loss", "seconds")
    for metrics in (report.ours, report.baseline):
        table.add_row(metrics.name, f"{metrics.accuracy:.4f}", f"{metrics.log_loss:.4f}", f"{metrics.seconds:.1f}")
    console = _console()
    console.print(f"{report.training} for training, {report.test} for the test", highlight=False)
    console.print(table)
    for note in report.notes:
        console.print(note, highlight=False, markup=False)
    print(f"model: {folder}")
    if json_file is not None:
        _write(json_file, json.dumps(asdict(report), indent=1))


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
    for setting in settings:
        if "=" not in setting:
            raise UsageError(f"--set {setting}: write it as field=value, or field=value,value for a grid")
    return dict((part.strip() for part in setting.split("=", 1)) for setting in settings)  # type: ignore[misc]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from error


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
