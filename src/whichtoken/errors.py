"""Errors that a user can correct: one sentence, shown without a traceback, exit code 2 on the command line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from whichtoken.display.text import visible

LONGEST_MESSAGE = 300  # characters of an error in a table
MOST_LISTED = 12  # names in a sentence, if a command lists them all
MOST_NEAREST = 3  # names that are offered for a wrong one
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
    """A wrong name, value or file: says what is wrong, what is accepted and what to do.

    A sentence about arguments has a field for each of them, and `describe` writes them as a reader knows them. As a
    Python error, the following is "seeds=0 must be at least 1"; on the command line, it is "--seeds 0 must be at least 1".

    >>> raise UsageError("{seeds} must be at least 1", seeds=0)  # doctest: +SKIP
    """

    # of a subclass that is an error of another kind as well, and begins as that
    sentence = ""
    arguments: Mapping[str, str] = MappingProxyType({})

    def __init__(self, sentence: str = "", **arguments: object) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        # as text: the error may have to travel between processes, which not every value can
        self.arguments = {
            name: repr(value) if isinstance(value, str) else str(value) for name, value in arguments.items()
        }
        self.args = (self.describe("{}={}".format),)

    def describe(self, argument: Callable[[str, str], str]) -> str:
        """The sentence, where each argument is written by a function of its name and its value."""
        given = self.arguments
        if not given:
            return str(self)
        # not by str.format: a name such as betas[0] is not a field for it, and braces of a value would be
        return re.sub(r"\{([^{}]+)\}", lambda f: argument(f[1], given[f[1]]) if f[1] in given else f[0], self.sentence)


class ColumnError(UsageError):
    """A column of a user's table that is missing or cannot be used; `column` is its name."""

    def __init__(self, sentence: str = "", column: str = "") -> None:
        super().__init__(sentence)
        self.column = column


def unknown(kind: str, name: str, known: Iterable[str], where: str = "", listed_by: str = "") -> UsageError:
    """The error for a name that does not exist, with the nearest one that does.

    It lists the names that exist; if a command lists them, and they are many, only the nearest ones and that command.
    """
    names = sorted(known)
    # a user who types only the last part of an id means the id that ends with it
    endings = [known_name for known_name in names if known_name.endswith("/" + name)]
    close = list(dict.fromkeys([*endings, *get_close_matches(name, names, n=MOST_NEAREST, cutoff=0.4)]))[:MOST_NEAREST]
    asked = f"unknown {kind} '{name}'{' for ' + where if where else ''}"
    if listed_by and len(names) > MOST_LISTED:
        hint = f"did you mean {_alternatives(close)}? " if close else ""
        return UsageError(f"{asked}; {hint}{listed_by} shows all {len(names)} {kind}s")
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UsageError(f"{asked}; {hint}{kind}s: {', '.join(names)}")


def _alternatives(names: list[str]) -> str:
    *first, last = (f"'{name}'" for name in names)
    return f"{', '.join(first)} or {last}" if first else last


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
    if isinstance(error, MemoryError):  # the size is to blame, not the place
        return f"not enough memory{': ' if message else ''}{message}; choose smaller sizes"
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
