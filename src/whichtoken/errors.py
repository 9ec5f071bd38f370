"""Errors that a user can correct: one sentence, shown without a traceback, exit code 2 on the command line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from whichtoken.display.text import visible

LONGEST_MESSAGE = 300  # characters of an error in a table
# what any line of any program may fail of, and what to do
SYSTEM_FAULTS = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOSPC: "free some space on the disk, in the temporary folder or in /dev/shm",
    errno.EDQUOT: "free some space on the disk",
    errno.ENOMEM: "close other programs",
    errno.EROFS: "make the disk, the temporary folder or /dev/shm writable",
}


class UsageError(ValueError):
    """A wrong name, value or file: says what is wrong, what is accepted and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    # a user who types only the last part of an id means the id that ends with it
    endings = [known_name for known_name in names if known_name.endswith("/" + name)]
    close = endings or get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UsageError(f"unknown {kind} '{name}'{' for ' + where if where else ''}; {hint}{kind}s: {', '.join(names)}")


def system_fault(error: BaseException | None) -> str:
    """What the system ran out of and what to do, if an error or one of its causes says so; otherwise an empty text."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for code, remedy in SYSTEM_FAULTS.items():
            # an extension that cannot be loaded has the message, but no errno
            if getattr(error, "errno", None) == code or os.strerror(code) in _short_message(error):
                return f"{os.strerror(code).lower()}; {remedy}"
        error = error.__cause__ or error.__context__
    return ""


def in_one_line(error: BaseException) -> str:
    """An error as one line for a table: a `UsageError` by its sentence, any other by its kind, message and place.

    Safe and short whatever the error contains: a message may be unreadable, endless or raise errors of its own.
    """
    if isinstance(error, UsageError):
        return _short_message(error)
    kind = _text_or(lambda: visible(type(error).__name__[:LONGEST_MESSAGE], keep=""), "error")
    message = _short_message(error)
    return f"{kind}{': ' if message else ''}{message}{_text_or(lambda: _place(error), '')}"


def _short_message(error: BaseException) -> str:
    def message() -> str:
        # the rest of the text of a SyntaxError is its place
        whole = str(error.msg if isinstance(error, SyntaxError) else error)
        # a subclass of str may have an indexing of its own
        text = " ".join(str.__getitem__(whole, slice(0, 10 * LONGEST_MESSAGE)).split())
        return visible(text[:LONGEST_MESSAGE] + (" ..." if len(text) > LONGEST_MESSAGE else ""), keep="")

    return _text_or(message, "its message cannot be read")


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # its traceback ends in the importer
        file, line = error.filename or "", error.lineno
    else:
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        if step is None:
            return ""
        file, line = step.tb_frame.f_code.co_filename, step.tb_lineno
    return visible(f" ({Path(file).name[:100]}:{line})", keep="")


def _text_or(text: Callable[[], str], otherwise: str) -> str:
    try:
        return text()
    except BaseException:  # the error's own methods may raise anything
        return otherwise
