"""whichtoken fit: train on a user's file, and save the model to a folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichtoken.app.cli.options import (
    Baseline,
    ClassWeight,
    DataFile,
    DropMissing,
    Encoding,
    Folds,
    MetricsFile,
    MinClass,
    NewModel,
    NoBaseline,
    Repeats,
    RowCount,
    Seed,
    Separator,
    SplitBy,
    TestShare,
    check_form,
    help_if_no_command,
    read_file,
    require_distinct_paths,
    whole_number,
)
from whichtoken.display.terminal import say
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.app.evaluation import FitReport
    from whichtoken.tables import TableForm

fit = typer.Typer()


@fit.callback(invoke_without_command=True)
def kinds(context: typer.Context) -> None:
    """Train on your own file, save the model to a folder, and compare it with a baseline on held-out rows."""
    help_if_no_command(context)


@fit.command("text")
def fit_text_file(
    data: DataFile,
    model: NewModel,
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the labels.")] = "label",
    ngrams: Annotated[
        int,
        typer.Option(
            metavar="1|2|3", parser=whole_number, help="Tokens: 1 for words, 2 also pairs of words, 3 also triples."
        ),
    ] = 1,
    stemmer: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Language of the Snowball stemmer, such as english.")
    ] = None,
    split_by: SplitBy = None,
    test_share: TestShare = 0.25,
    folds: Folds = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    baseline: Baseline = None,
    no_baseline: NoBaseline = False,
    class_weight: ClassWeight = None,
    drop_missing: DropMissing = False,
    min_class: MinClass = 1,
    separator: Separator = None,
    encoding: Encoding = None,
    rows: RowCount = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify documents, and see which words decide.

    Baselines: logistic (TF-IDF and logistic regression), naive-bayes.

    Example: whichtoken fit text reviews.csv --text review --label sentiment --model reviews-model
    """
    from whichtoken.app.evaluation import Scheme
    from whichtoken.app.fitting import TextRoles, fit_text

    form = _form(data, separator, encoding, rows)
    require_distinct_paths({"DATA": data}, {"--json": json_file})
    scheme = Scheme(test_share, folds, repeats, seed, _baseline(baseline, no_baseline), min_class)
    if ngrams not in (1, 2, 3):
        raise UsageError(f"--ngrams {ngrams} must be 1, 2 or 3")
    options = {
        "ngram_range": (1, ngrams),
        "stemmer": stemmer,
        "class_weight": class_weight,
        "verbose": int(sys.stderr.isatty()),
    }
    roles = TextRoles(text, label, split_by)
    report = fit_text(data, model, roles, scheme, options=options, drop_missing=drop_missing, **form)
    _print_fit(report, model, json_file)


@fit.command("bags")
def fit_bags_file(
    data: DataFile,
    model: NewModel,
    bag: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the bag of each row.")] = "bag",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the labels of the bags.")] = "label",
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Feature column (repeatable); default: all other columns."),
    ] = None,
    queries: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number, help="Number of queries per class; with one, decisions are certified."
        ),
    ] = 1,
    instance_map: Annotated[
        str,
        typer.Option(
            metavar="linear|fourier|network", help="Map of the instances before attention; linear is the fastest."
        ),
    ] = "linear",
    split_by: SplitBy = None,
    test_share: TestShare = 0.25,
    folds: Folds = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    baseline: Baseline = None,
    no_baseline: NoBaseline = False,
    class_weight: ClassWeight = None,
    drop_missing: DropMissing = False,
    min_class: MinClass = 1,
    separator: Separator = None,
    encoding: Encoding = None,
    rows: RowCount = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify bags of instances (one instance per row), and see which instances decide.

    Missing numbers are filled with the training median; columns of texts become columns of 0 and 1.

    Baselines, on the mean of the instances: logistic, boosting.

    Example: whichtoken fit bags molecules.csv --bag molecule --label active --model molecules-model
    """
    from whichtoken.app.evaluation import Scheme
    from whichtoken.app.fitting import fit_bags
    from whichtoken.app.readers.bags import BagRoles

    form = _form(data, separator, encoding, rows)
    require_distinct_paths({"DATA": data}, {"--json": json_file})
    scheme = Scheme(test_share, folds, repeats, seed, _baseline(baseline, no_baseline), min_class)
    roles = BagRoles(bag, label, feature or None, split_by)
    report = fit_bags(
        data, model, roles, scheme, options={"n_queries": queries, "instance_map": instance_map}, class_weight=class_weight,
        drop_missing=drop_missing, **form,
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
        list[str] | None, typer.Option(metavar="COLUMN", help="Column that is always kept (repeatable).")
    ] = None,
    split_by: SplitBy = None,
    test_share: TestShare = 0.25,
    folds: Folds = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    baseline: Baseline = None,
    no_baseline: NoBaseline = False,
    class_weight: ClassWeight = None,
    drop_missing: DropMissing = False,
    min_class: MinClass = 1,
    separator: Separator = None,
    encoding: Encoding = None,
    rows: RowCount = None,
    json_file: MetricsFile = None,
) -> None:
    """Classify rows whose columns come in groups, and see which groups matter.

    Missing numbers are filled with the training median; columns of texts become columns of 0 and 1.

    Baselines, on all columns: logistic, boosting.

    Example: whichtoken fit groups cells.csv --prefix _ --label malignant --model cells-model
    """
    from whichtoken.app.evaluation import Scheme
    from whichtoken.app.fitting import GroupRoles, fit_groups, read_mapping

    if (groups is None) == (prefix is None):
        raise UsageError("give either --groups FILE.json or --prefix CHARACTER")
    form = _form(data, separator, encoding, rows)
    require_distinct_paths({"DATA": data, "--groups": groups}, {"--json": json_file})
    scheme = Scheme(test_share, folds, repeats, seed, _baseline(baseline, no_baseline), min_class)
    roles = GroupRoles(read_mapping(groups) if groups else str(prefix), label, covariate or (), split_by)
    options = {"class_weight": class_weight}
    report = fit_groups(data, model, roles, scheme, options=options, drop_missing=drop_missing, **form)
    _print_fit(report, model, json_file)


def _baseline(name: str | None, none: bool) -> str | None:
    """The name of the baseline; None for the most frequent class alone."""
    if name is not None and none:
        raise UsageError(f"--baseline {visible(name)} and --no-baseline contradict each other; leave one out")
    return None if none else name or "logistic"


def _form(data: Path, separator: str | None, encoding: str | None, rows: int | None) -> TableForm:
    """How the table is read."""
    form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
    check_form(data, form)
    return form


def _print_fit(report: FitReport, folder: Path, json_file: Path | None) -> None:
    from whichtoken.app.pages.evaluation import print_evaluation

    if json_file is not None:
        write_text(json_file, json.dumps(asdict(report), indent=1, allow_nan=False))
    print_evaluation(report)
    say(f"model: {folder}")
