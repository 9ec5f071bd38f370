"""Errors that a user can put right: one sentence, shown without a traceback, exit code 2 on the command line."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class UsageError(ValueError):
    """A wrong name, value or file: says what is wrong, what is accepted and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    # a user who types only the last part of an id means the id that ends with it
    close = [known_name for known_name in names if known_name.endswith("/" + name)] or get_close_matches(
        name, names, n=1, cutoff=0.5
    )
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UsageError(f"unknown {kind} '{name}'{' for ' + where if where else ''}; {hint}{kind}s: {', '.join(names)}")


def in_one_line(error: BaseException) -> str:
    """A fault as one line: a sentence as it is, anything else by its kind, its message and the line that raised it."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, SyntaxError):  # its traceback ends in the importer; the file and the line are in the error
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename or '').name}:{error.lineno})"
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "without a message that can be read"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"
