"""whichtoken fit: train on a user's own file, and save a model folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from whichtoken.commands.options import (
    DataFile,
    MetricsFile,
    NewModel,
    Seed,
    Separator,
    TestShare,
    check_apart,
    help_unless_asked,
    read_file,
    whole_number,
)
from whichtoken.display.terminal import console, table
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.files import write_text

fit = typer.Typer()


@fit.callback(invoke_without_command=True)
def kinds(context: typer.Context) -> None:
    """Train on your own file, save the model to a folder, and compare it with a baseline on held-out rows."""
    help_unless_asked(context)


@fit.command("text")
def fit_text_file(
    data: DataFile,
    model: NewModel,
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the labels.")] = "label",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of groups; rows of one group are never split between training and test."
        ),
    ] = None,
    ngrams: Annotated[
        int,
        typer.Option(metavar="1|2|3", parser=whole_number, help="1: words; 2: also pairs of words; 3: also triples."),
    ] = 1,
    stemmer: Annotated[str | None, typer.Option(metavar="LANGUAGE", help="Snowball stemmer, such as english.")] = None,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify documents, and see which words decide.

    Example: whichtoken fit text reviews.csv --text review --label sentiment --model reviews-model
    """
    from whichtoken.commands.models import check_separator
    from whichtoken.estimators.text.fitting import fit_text

    check_separator(data, separator)
    check_apart({"DATA": data}, {"--json": json_file})
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
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the labels of the bags.")] = "label",
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Feature column (repeatable); all other columns by default."),
    ] = None,
    queries: Annotated[
        int,
        typer.Option(metavar="N", parser=whole_number, help="Queries per class; with one, decisions are certified."),
    ] = 1,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify bags of instances (one instance per row), and see which instances decide.

    Example: whichtoken fit bags molecules.csv --bag molecule --label active --model molecules-model
    """
    from whichtoken.commands.models import check_separator
    from whichtoken.estimators.table_fits import fit_bags

    check_separator(data, separator)
    check_apart({"DATA": data}, {"--json": json_file})
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
        Path | None,
        typer.Option(
            metavar="FILE.json",
            callback=read_file,
            help='JSON file with the groups, such as {"size": ["width", "height"]}.',
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER", help="Group columns by the part of their name before this character, such as _."
        ),
    ] = None,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the labels.")] = "label",
    covariate: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column to keep in any case (repeatable).")
    ] = None,
    test_share: TestShare = 0.25,
    seed: Seed = 0,
    separator: Separator = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify rows whose columns come in groups, and see which groups matter.

    Example: whichtoken fit groups cells.csv --prefix _ --label malignant --model cells-model
    """
    from whichtoken.commands.models import check_separator
    from whichtoken.estimators.table_fits import fit_groups, read_mapping

    if (groups is None) == (prefix is None):
        raise UsageError("give either --groups FILE.json or --prefix CHARACTER")
    check_separator(data, separator)
    check_apart({"DATA": data, "--groups": groups}, {"--json": json_file})
    report = fit_groups(
        data, model, groups=read_mapping(groups) if groups else str(prefix), label=label, covariates=covariate or (),
        test_share=test_share, seed=seed, separator=separator,
    )  # fmt: skip
    _print_fit(report, model, json_file)


def _print_fit(report: Any, folder: Path, json_file: Path | None) -> None:
    rows = table("model", "test accuracy", "test log loss", "seconds")
    for metrics in (report.ours, report.baseline):
        rows.add_row(metrics.name, f"{metrics.accuracy:.4f}", f"{metrics.log_loss:.4f}", f"{metrics.seconds:.1f}")
    out = console()
    out.print(f"{report.training} for training, {report.test} for the test", highlight=False)
    out.print(rows)
    for note in report.notes:
        out.print(visible(note), highlight=False, markup=False)
    print(f"model: {visible(str(folder))}")
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(report), indent=1))
