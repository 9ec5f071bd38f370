"""whichtoken explain: which tokens, instances or groups decided, and what would change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichtoken.commands.options import (
    Column,
    Encoding,
    ModelFolder,
    RowCount,
    Separator,
    check_apart,
    new_file,
    read_file,
)
from whichtoken.display.terminal import console, printable, table
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.estimators import Explanation
    from whichtoken.report.explanations import Presentation


def explain(
    model: ModelFolder,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="A text, in quotes.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=read_file, help="A text file, or a table.")
    ] = None,
    column: Column = None,
    separator: Separator = None,
    encoding: Encoding = None,
    rows: RowCount = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=new_file, help="Write a coloured HTML page.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="Write every number as JSON.")
    ] = None,
) -> None:
    """Show which tokens, instances or groups of columns decided, and what would change the label: exact, without sampling.

    Examples:

      whichtoken explain reviews-model "A wonderful film with a terrible end."

      whichtoken explain cells-model --file cells.csv

      whichtoken explain molecules-model --file molecules.csv --column molecule
    """
    from whichtoken.commands.models import explain_data
    from whichtoken.report.explanations import presentation_of

    check_apart({"--file": file}, {"--html": html, "--json": json_file})
    explanations = explain_data(model, text, file, column, separator=separator, encoding=encoding, rows=rows)
    presentation = presentation_of(explanations[0])
    if html is not None:
        write_text(html, presentation.as_html(explanations))
    if json_file is not None:
        write_text(json_file, json.dumps([item.as_json() for item in explanations], ensure_ascii=False, indent=1))
    if html is None and json_file is None:
        for item in explanations:
            _print_explanation(item, presentation)


def _print_explanation(item: Explanation, presentation: Presentation) -> None:
    out, rows = console(), table(*presentation.HEADINGS)
    out.print(presentation.summary(item), highlight=False, markup=False, style="bold")
    out.print(presentation.coloured(item))
    for line in presentation.reason_lines(item):
        rows.add_row(*map(printable, line))
    out.print(rows)
