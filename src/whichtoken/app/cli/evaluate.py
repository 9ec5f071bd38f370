"""whichtoken evaluate: how good a saved model is on new labeled data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichtoken.app.cli import options
from whichtoken.display.text import pluralize
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.tables import TableForm


def evaluate(
    model: options.ModelFolder,
    data: options.DataFiles,
    label: Annotated[
        str | None, options.column_name("Column with the true labels or numbers; default: that of the fit, or label.")
    ] = None,
    column: options.Column = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave out rows without a label.")] = False,
    html: Annotated[
        Path | None, options.new_output("Write an HTML page; with classes, it shows the calibration.")
    ] = None,
    json_file: options.MetricsFile = None,
    engine: options.DaskScheduler = None,
) -> None:
    """Score a saved model on labeled data: metrics with intervals, each class or label, and the effect of abstaining.

    Example: whichtoken evaluate reviews-model new.csv --text review --label sentiment
    """
    from whichtoken.app.cli.models import check_options
    from whichtoken.app.evaluation import evaluate_saved
    from whichtoken.app.pages.evaluation import print_evaluation
    from whichtoken.app.partitions import Request, evaluate_file, evaluate_partitions
    from whichtoken.estimators.metrics import evaluation_page
    from whichtoken.estimators.model_folder import read_folder, training_note

    (path,) = data
    options.require_distinct_paths({"DATA": path}, {"--html": html, "--json": json_file})
    form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
    opened = read_folder(model)
    check_options(opened, path, column, form)
    request = Request(opened, column, form, {"label": label, "drop_missing": drop_missing})
    found = evaluate_file(request, path) if engine is None else evaluate_partitions(request, path, engine)
    notes = training_note(model, path)
    if found.left:
        missing = "text or label" if found.lacking else "label"
        notes.append(
            f"{pluralize(found.left, 'row')} without a {missing} {'was' if found.left == 1 else 'were'} left out"
        )
    report = evaluate_saved(path, found.trained(), found.labels, notes, found.target)
    if html is not None:
        write_text(html, evaluation_page(f"{model.name} on {path.name}", asdict(report)))
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(report), indent=1, allow_nan=False))
    print_evaluation(report)
