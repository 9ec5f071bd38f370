"""Tables, lines and notes on the terminal, safe for texts from data; a warning is a note: one sentence, once."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whichtoken.display.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100  # columns of a file or a pipe
quiet = False  # set by --quiet: no notes and no progress are shown
# for authors of libraries: a user of the command line can do nothing about them
FOR_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)
# by the name of the class, as importing the libraries would be slow
PLAIN_NOTES = {
    "ConvergenceWarning": "a fit stopped before it had converged; its numbers may be a little worse than they could be",
    "RuntimeWarning": "some numbers were too large or too small to compute with exactly; look at the results with care",
}


def console() -> Console:
    """Standard output; in a file or a pipe tables are 100 columns wide (or COLUMNS) and sentences stay on one line."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=None if "COLUMNS" in os.environ else WIDTH, soft_wrap=True)


def say(sentence: object, style: str = "", *, wrap: bool = True) -> None:
    """Print a sentence, safe for texts from data; on a terminal it wraps between words, unless it is to be copied."""
    console().print(printable(sentence, style), highlight=False, soft_wrap=None if wrap else True)


def suggest(*commands: str) -> None:
    """Print the commands that a user may want next, to be copied."""
    for command in () if quiet else commands:
        say(f"next: {command}", "dim", wrap=False)


def table(*columns: str, title: str | None = None, numbers: bool = False) -> Any:
    """An empty table with these headings, without markup; cells that are too wide are folded, but not `numbers` beside names."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for place, column in enumerate(columns):
        made.add_column(printable(column), overflow="fold", no_wrap=numbers and place > 0)
    return made


def printable(value: object, style: str = "") -> Text:
    """A value from data as text to print: markup in it has no effect and control characters are visible."""
    from rich.text import Text

    return value if isinstance(value, Text) else Text(visible(str(value)), style)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show each warning once, as a note on standard error."""
    shown = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        note = note_of(message, category)
        if note and note not in shown and not quiet:
            shown.add(note)
            print(f"note: {note}", file=sys.stderr)

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Issue each warning of the block once, from whichever lines it came; filters stay as they are."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    distinct = {(item.category, str(item.message)): item for item in reversed(caught)}
    for item in reversed(distinct.values()):
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)


def note_of(message: Warning | str, category: type[Warning]) -> str:
    """The note for a warning; empty if the warning is for developers."""
    if issubclass(category, FOR_DEVELOPERS):
        return ""
    return PLAIN_NOTES.get(category.__name__) or visible(" ".join(str(message).split()))
