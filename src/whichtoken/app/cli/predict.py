"""whichtoken predict: labels and probabilities for a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import (
    Column,
    DataFile,
    Encoding,
    ModelFolder,
    RowCount,
    Separator,
    SpreadsheetSafe,
    new_table,
    probability,
    require_distinct_paths,
)


def predict(
    model: ModelFolder,
    data: DataFile,
    column: Column = None,
    separator: Separator = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            callback=new_table,
            help="Table to write: .csv, .tsv, .parquet or .jsonl; default: print CSV.",
        ),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(
            "--abstain-below", metavar="P", parser=probability, help="Give no label if its probability is lower."
        ),
    ] = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    encoding: Encoding = None,
    rows: RowCount = None,
) -> None:
    """Predict labels and probabilities for the rows of a file, beside its own columns; a bag gets one line.

    Example: whichtoken predict reviews-model new.csv --column review --to labeled.parquet --abstain-below 0.8
    """
    from whichtoken.app.cli.models import apply_model
    from whichtoken.app.evaluation import add_predictions
    from whichtoken.tables import write_table

    require_distinct_paths({"DATA": data}, {"--to": to})
    found = apply_model(model, data, column, separator=separator, encoding=encoding, rows=rows)
    predicted = add_predictions(found.table, found.classes, found.probabilities(), abstain_below)
    if to is None:
        print(predicted.to_csv(index=False), end="")
    else:
        write_table(predicted, to, spreadsheet_safe=spreadsheet_safe)
