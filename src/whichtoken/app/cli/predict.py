"""whichtoken predict: labels and probabilities for a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichtoken.app.cli import options

if TYPE_CHECKING:
    from whichtoken.tables import TableForm


def predict(
    model: options.ModelFolder,
    data: options.DataFiles,
    column: options.Column = None,
    separator: options.Separator = None,
    to: Annotated[
        Path | None,
        options.new_output(
            "Table to write: .csv, .tsv, .parquet or .jsonl, or a folder for one table per file; default: print CSV.",
            check=options.new_table_or_folder,
        ),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(metavar="P", parser=options.probability, help="Give no label if its probability is lower."),
    ] = None,
    spreadsheet_safe: options.SpreadsheetSafe = False,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    engine: options.DaskScheduler = None,
) -> None:
    """Predict labels and probabilities, or numbers, as columns added to your table; a bag gets one row.

    If --to is a folder, it gets one table for each input file, and after an interruption the same command continues.

    Examples:

      whichtoken predict reviews-model new.csv --text review --to labeled.parquet --abstain-below 0.8

      whichtoken predict reviews-model 'reviews/*.parquet' --to labeled --engine dask://scheduler:8786
    """
    from whichtoken.app.cli.models import answer_by_file, apply_model
    from whichtoken.app.partitions import by_file, predict_file
    from whichtoken.tables import write_table

    (path,) = data
    options.require_distinct_paths({"DATA": path}, {"--to": to})
    if engine is not None or by_file(path, to):
        settings = {"abstain_below": abstain_below, "spreadsheet_safe": spreadsheet_safe}
        form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
        answer_by_file(predict_file, model, path, column, form, settings, to, engine)
        return
    found = apply_model(model, path, column, separator=separator, encoding=encoding, rows=rows)
    predicted = found.predicted(abstain_below)
    if to is None:
        print(predicted.to_csv(index=False), end="")
    else:
        write_table(predicted, to, spreadsheet_safe=spreadsheet_safe)
