"""whichtoken report: HTML pages of the stored results."""

from __future__ import annotations

from typing import Annotated

import typer

from whichtoken.app.cli.options import OutFolder
from whichtoken.files import DEFAULT_FOLDER


def report(
    out: OutFolder = DEFAULT_FOLDER,
    record: Annotated[
        bool, typer.Option("--record", help="Show the runs on record, at every size, instead of your own runs.")
    ] = False,
) -> None:
    """Write an HTML report from the stored results, without computing anything again."""
    from whichtoken.app.pages.html import write_pages
    from whichtoken.app.pages.terminal import print_summary

    written = write_pages(out, record)
    print_summary(written.studies, str(written.index), record)
