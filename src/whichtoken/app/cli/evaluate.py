"""whichtoken evaluate: how good a saved model is on new labeled data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli import options
from whichtoken.display.text import counted
from whichtoken.files import write_text


def evaluate(
    model: options.ModelFolder,
    data: options.DataFiles,
    label: Annotated[
        str | None, options.column_name("Column with the true labels; default: that of the fit, or label.")
    ] = None,
    column: options.Column = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave out rows without a label.")] = False,
    html: Annotated[Path | None, options.new_output("Write an HTML page with the calibration figure.")] = None,
    json_file: options.MetricsFile = None,
) -> None:
    """Score a saved model on labeled data: metrics with intervals, each class, and the effect of abstaining.

    Example: whichtoken evaluate reviews-model new.csv --column review --label sentiment
    """
    from whichtoken.app.cli.models import apply_model
    from whichtoken.app.evaluation import evaluate_saved
    from whichtoken.app.pages.evaluation import print_evaluation
    from whichtoken.estimators.metrics import evaluation_page
    from whichtoken.estimators.model_folder import training_note

    (path,) = data
    options.require_distinct_paths({"DATA": path}, {"--html": html, "--json": json_file})
    found = apply_model(model, path, column, separator=separator, encoding=encoding, rows=rows)
    label = label or found.label
    labeled = found.labeled_rows(label, drop_missing)
    notes = training_note(model, path)
    if left := len(found.table) - len(labeled):
        missing = "label" if found.empty is None or not found.empty.any() else "text or label"
        notes.append(f"{counted(left, 'row')} without a {missing} {'was' if left == 1 else 'were'} left out")
    report = evaluate_saved(path, found.trained(labeled), found.labels(label, labeled), notes)
    if html is not None:
        write_text(html, evaluation_page(f"{model.name} on {path.name}", asdict(report)))
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(report), indent=1))
    print_evaluation(report)
