"""whichtoken predict: labels and probabilities of a user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.commands.options import (
    Column,
    DataFile,
    Encoding,
    ModelFolder,
    RowCount,
    Separator,
    SpreadsheetSafe,
    check_apart,
    new_table,
    probability,
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
    abstain_below: Annotated[
        float | None,
        typer.Option(
            "--abstain-below", metavar="P", parser=probability, help="Leave out labels with a lower probability."
        ),
    ] = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    encoding: Encoding = None,
    rows: RowCount = None,
) -> None:
    """Predict labels and probabilities for the rows of a file, beside its own columns; a bag gets one line.

    Example: whichtoken predict reviews-model new.csv --column review --to labelled.parquet --abstain-below 0.8
    """
    from whichtoken.commands.models import applied
    from whichtoken.data.table_output import write_table
    from whichtoken.estimators.evaluation import with_predictions

    check_apart({"DATA": data}, {"--to": to})
    found = applied(model, data, column, separator=separator, encoding=encoding, rows=rows)
    predicted = with_predictions(found.table, found.classes, found.probabilities(), abstain_below)
    if to is None:
        print(predicted.to_csv(index=False), end="")
    else:
        write_table(predicted, to, spreadsheet_safe=spreadsheet_safe)
