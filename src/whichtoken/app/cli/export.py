"""whichtoken export: stored rows as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import OutFolder, SpreadsheetSafe, new_table
from whichtoken.display.terminal import say
from whichtoken.display.text import pluralize
from whichtoken.files import DEFAULT_FOLDER


def export(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Claims to export; default: all.")] = None,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", callback=new_table, help="File to write: .parquet, .csv, .tsv or .jsonl."),
    ] = ...,  # type: ignore[assignment]
    out: OutFolder = DEFAULT_FOLDER,
    spreadsheet_safe: SpreadsheetSafe = False,
) -> None:
    """Write the stored rows as a table, with a column for every field and every measured or predicted value."""
    from whichtoken.lab.export import export_rows

    rows = export_rows(out, ids or [], to, spreadsheet_safe=spreadsheet_safe)
    say(f"{pluralize(rows, 'row')}: {to}")
