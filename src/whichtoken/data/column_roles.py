"""Which column of a table plays which part, checked before the table is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whichtoken.data.reading import shown
from whichtoken.errors import UsageError


def check_roles(roles: Iterable[tuple[str, str]]) -> None:
    """Refuse a column that is asked for in two roles, or twice in one; pairs of a role and a column."""
    taken: dict[str, str] = {}
    for role, column in roles:
        if not column.strip():
            raise UsageError(f"the {role} column '{column}' has no name; name a column of the table")
        if column in taken:
            parts = f"{role} twice" if taken[column] == role else f"{taken[column]} and {role}"
            raise UsageError(f"column '{shown(column)}' is named as {parts}; each needs a column of its own")
        taken[column] = role


def filled(path: Path, values: Iterable[Any], column: str, role: str, first: int = 0) -> list[str]:
    """Names of bags or groups as strings; a cell without one is refused. `first` rows came before."""
    names = []
    for row, value in enumerate(values, first + 1):
        name = "" if value is None else str(value).strip()
        if name in ("", "nan", "<NA>", "NaT"):
            raise UsageError(f"{shown(path)}: row {row} has no {role} in column '{shown(column)}'; every row needs one")
        names.append(name)
    return names
