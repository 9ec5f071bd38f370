"""whichtoken explain: which tokens, instances or groups decided, and what would change it."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from whichtoken.display.text import counted, visible
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.display.decision import Decision
    from whichtoken.estimators import Explanation

FIRST = 3  # explanations of a table that are shown
SHORT = 400  # characters of each


def explain(
    model: ModelFolder,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text, in quotes.")] = None,
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
    """Show which tokens, instances or groups of columns decided, and what would change the label.

    The reasons are exact: they add up to the decision, and nothing is sampled.

    Examples:

      whichtoken explain reviews-model "A wonderful film with a terrible end."

      whichtoken explain cells-model --file cells.csv

      whichtoken explain molecules-model --file molecules.csv --column molecule
    """
    from whichtoken.commands.models import explain_data
    from whichtoken.report.explanations import MOST_ON_A_PAGE, as_html

    check_apart({"--file": file}, {"--html": html, "--json": json_file})
    explanations = explain_data(model, text, file, column, separator=separator, encoding=encoding, rows=rows)
    count = counted(len(explanations), "explanation")
    if html is not None:
        write_text(html, as_html(explanations))
        shown = f"the first {MOST_ON_A_PAGE} of {count}" if len(explanations) > MOST_ON_A_PAGE else count
        _say(f"wrote {shown} to {html}" + ("; --json FILE has them all" if shown != count else ""))
    if json_file is not None:
        write_text(json_file, json.dumps([item.as_json() for item in explanations], ensure_ascii=False, indent=1))
        _say(f"wrote {count} to {json_file}")
    if html is None and json_file is None:
        _print_explanations(explanations)


def _say(sentence: str) -> None:
    console().print(visible(sentence), highlight=False, markup=False, soft_wrap=True)


def _print_explanations(explanations: Sequence[Explanation]) -> None:
    """One in full; of several the first few in short."""
    if len(explanations) == 1:
        _print_whole(explanations[0].view())
        return
    for number, item in enumerate(explanations[:FIRST], 1):
        _print_short(item.view(number))
    left = len(explanations) - FIRST
    if left > 0:
        _say(f"and {left} more; --html FILE shows them all, --json FILE has every number")


def _print_whole(decision: Decision) -> None:
    from whichtoken.report.explanations import coloured, reason_lines

    out, rows = console(), table(*map(visible, decision.headings))
    out.print(decision.summary(), highlight=False, markup=False, style="bold")
    out.print(coloured(decision))
    for line in reason_lines(decision):
        rows.add_row(*map(printable, line))
    out.print(rows)


def _print_short(decision: Decision) -> None:
    from whichtoken.report.explanations import coloured

    out, painted = console(), coloured(decision)
    out.print(decision.summary(), highlight=False, markup=False, style="bold")
    out.print(painted if len(painted) <= SHORT else painted[:SHORT].append(" ..."))
    out.print()
