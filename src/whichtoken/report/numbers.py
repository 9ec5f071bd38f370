"""The numbers of a run as a table: one line per point, from rows that are grouped once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

import numpy as np

from whichtoken.lab.experiment import Row
from whichtoken.lab.results import Result

MOST_POINTS = 60  # longer and wider tables belong in `whichtoken export`
MOST_COLUMNS = 24


@dataclass(frozen=True)
class Numbers:
    """A table for people, and in words what it leaves out."""

    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    hidden: str


def numbers_of(result: Result) -> Numbers:
    """The fields that vary, then mean and standard error of each measured number, then theory."""
    fields = [name for name, levels in _levels(result).items() if len(levels) > 1]
    measured = list(
        dict.fromkeys(name for row in result.rows for name in row.measured if _is_number(row.measured[name]))
    )
    predicted = list(
        dict.fromkeys(n for row in result.rows for n, item in row.predicted.items() if _is_number(item.value))
    )
    # the rows come from the ledger with the plan's own points, so that a point is known by its identity
    rows_of: dict[int, list[Row[Any]]] = {}
    for row in result.rows:
        rows_of.setdefault(id(row.point), []).append(row)
    lines = []
    for point in islice(result.plan.points.values(), MOST_POINTS):
        rows = rows_of.get(id(point), [])
        line = [str(getattr(point, name)) for name in fields] + [str(len(rows))]
        line += [
            _mean_and_error([row.measured[n] for row in rows if _is_number(row.measured.get(n))]) for n in measured
        ]
        line += [_theory(rows, name) for name in predicted]
        lines.append(line[:MOST_COLUMNS])
    columns = [*fields, "rows", *measured, *(f"theory: {name}" for name in predicted)]
    return Numbers(columns[:MOST_COLUMNS], lines, _hidden(result.points - len(lines), len(columns) - MOST_COLUMNS))


def fixed_fields(result: Result) -> dict[str, Any]:
    """The fields that are the same at every point."""
    return {name: next(iter(levels)) for name, levels in _levels(result).items() if len(levels) == 1}


def varied_fields(result: Result) -> dict[str, str]:
    """The values of those that differ."""
    return {name: ", ".join(map(str, levels)) for name, levels in _levels(result).items() if len(levels) > 1}


def _levels(result: Result) -> dict[str, dict[Any, None]]:
    """The values of each field, in the order of the plan."""
    points = list(result.plan.points.values())
    return {name: dict.fromkeys(getattr(p, name) for p in points) for name in (vars(points[0]) if points else ())}


def _theory(rows: Sequence[Row[Any]], name: str) -> str:
    item = rows[0].predicted.get(name) if rows else None
    if item is None:
        return ""
    return f"{item.value:.4g}" if _is_number(item.value) else str(item.value)


def _hidden(points: int, columns: int) -> str:
    return " and ".join(f"{number} {what}" for number, what in ((points, "points"), (columns, "columns")) if number > 0)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return ""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1g}"
