"""whichtoken report: HTML pages of what is stored."""

from __future__ import annotations

from whichtoken.commands.options import OutFolder
from whichtoken.display.text import visible
from whichtoken.places import DEFAULT_FOLDER


def report(out: OutFolder = DEFAULT_FOLDER) -> None:
    """Write an HTML report from the stored results; nothing is computed again."""
    from whichtoken.report import write_report

    print(f"report: {visible(str(write_report(out)))}")
