"""whichtoken evaluate: how good a saved model is on labelled data that it has not seen."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.commands.options import (
    Column,
    DataFile,
    Encoding,
    MetricsFile,
    ModelFolder,
    RowCount,
    Separator,
    check_apart,
    new_file,
)
from whichtoken.display.text import counted
from whichtoken.files import write_text


def evaluate(
    model: ModelFolder,
    data: DataFile,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the true labels.")] = "label",
    column: Column = None,
    separator: Separator = None,
    encoding: Encoding = None,
    rows: RowCount = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave out rows without a label.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=new_file, help="Write a page with the calibration figure.")
    ] = None,
    json_file: MetricsFile = None,
) -> None:
    """Score a saved model on labelled data: metrics with intervals, each class, and what abstaining would give.

    Example: whichtoken evaluate reviews-model new.csv --column review --label sentiment
    """
    from whichtoken.commands.models import applied
    from whichtoken.estimators.evaluation import judged_again
    from whichtoken.estimators.evaluation_page import evaluation_page
    from whichtoken.estimators.model_card import training_note
    from whichtoken.report.evaluation import print_evaluation

    check_apart({"DATA": data}, {"--html": html, "--json": json_file})
    found = applied(model, data, column, separator=separator, encoding=encoding, rows=rows)
    labelled = found.labelled(label, drop_missing)
    notes = training_note(model, data)
    if left := len(found.table) - len(labelled):
        notes.append(f"{counted(left, 'row')} without a label {'was' if left == 1 else 'were'} left out")
    report = judged_again(data, found.trained(labelled), found.labels(label, labelled), notes)
    if html is not None:
        write_text(html, evaluation_page(f"{model.name} on {data.name}", asdict(report)))
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(report), indent=1))
    print_evaluation(report)
