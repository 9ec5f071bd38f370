"""whichtoken predict: labels and probabilities for a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli import options


def predict(
    model: options.ModelFolder,
    data: options.DataFiles,
    column: options.Column = None,
    separator: options.Separator = None,
    to: Annotated[
        Path | None,
        options.new_output(
            "Table to write: .csv, .tsv, .parquet or .jsonl; default: print CSV.", check=options.new_table
        ),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(metavar="P", parser=options.probability, help="Give no label if its probability is lower."),
    ] = None,
    spreadsheet_safe: options.SpreadsheetSafe = False,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
) -> None:
    """Predict labels and probabilities for the rows of a file, beside its own columns; a bag gets one line.

    Example: whichtoken predict reviews-model new.csv --column review --to labeled.parquet --abstain-below 0.8
    """
    from whichtoken.app.cli.models import apply_model
    from whichtoken.app.evaluation import add_predictions
    from whichtoken.tables import write_table

    (path,) = data
    options.require_distinct_paths({"DATA": path}, {"--to": to})
    found = apply_model(model, path, column, separator=separator, encoding=encoding, rows=rows)
    predicted = add_predictions(found.table, found.classes, found.probabilities(), abstain_below, found.weights)
    if to is None:
        print(predicted.to_csv(index=False), end="")
    else:
        write_table(predicted, to, spreadsheet_safe=spreadsheet_safe)
