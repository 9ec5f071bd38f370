"""Errors that a user can put right: one sentence, shown without a traceback, exit code 2 on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
