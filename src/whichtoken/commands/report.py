"""whichtoken report: HTML pages of what is stored."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.commands.options import OutFolder
from whichtoken.places import DEFAULT_FOLDER


def report(
    out: OutFolder = DEFAULT_FOLDER,
    record: Annotated[
        bool, typer.Option("--record", help="Show the runs on record, at every size, instead of your own.")
    ] = False,
) -> None:
    """Write an HTML report from the stored results; nothing is computed again."""
    from whichtoken.report.html import write_pages
    from whichtoken.report.terminal import print_summary

    written = write_pages(out, record)
    print_summary(written.studies, str(written.index), record)
