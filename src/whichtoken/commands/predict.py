"""whichtoken predict: labels and probabilities of a user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.commands.options import (
    Column,
    DataFile,
    ModelFolder,
    Separator,
    SpreadsheetSafe,
    check_apart,
    new_table,
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
            help="File to write: .csv, .tsv, .parquet or .jsonl; default: print as CSV.",
        ),
    ] = None,
    spreadsheet_safe: SpreadsheetSafe = False,
) -> None:
    """Predict labels and probabilities for the rows of a file."""
    from whichtoken.commands.models import predict_file
    from whichtoken.data.table_output import write_table

    check_apart({"DATA": data}, {"--to": to})
    predicted = predict_file(model, data, column=column, separator=separator)
    if to is None:
        print(predicted.to_csv(index=False), end="")
    else:
        write_table(predicted, to, spreadsheet_safe=spreadsheet_safe)
