"""Warnings as notes on the command line: one sentence, once, without source lines."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whichtoken.display.text import visible

quiet = False  # set by --quiet: no notes are shown
# for authors of libraries: a user of the command line can do nothing about them
FOR_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)
# by the name of the class, as importing the libraries would be slow
PLAIN_NOTES = {
    "ConvergenceWarning": "a fit stopped before it had converged; its numbers may be a little worse than they could be",
    "RuntimeWarning": "some numbers were too large or too small to compute with exactly; look at the results with care",
}


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
