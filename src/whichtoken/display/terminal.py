"""Tables and lines on the terminal, safe for texts from data."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from whichtoken.display.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100  # columns of a file or a pipe


def console() -> Console:
    """Standard output; in a file or a pipe tables are 100 columns wide (or COLUMNS) and sentences stay on one line."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=None if "COLUMNS" in os.environ else WIDTH, soft_wrap=True)


def say(sentence: object, style: str = "", *, wrap: bool = True) -> None:
    """Print a sentence, safe for texts from data; on a terminal it wraps between words, unless it is to be copied."""
    console().print(printable(sentence, style), highlight=False, soft_wrap=None if wrap else True)


def table(*columns: str, title: str | None = None) -> Any:
    """An empty table with these headings, without markup; cells that are too wide are folded."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(printable(column), overflow="fold")
    return made


def printable(value: object, style: str = "") -> Text:
    """A value from data as text to print: markup in it has no effect and control characters are visible."""
    from rich.text import Text

    return value if isinstance(value, Text) else Text(visible(str(value)), style)
