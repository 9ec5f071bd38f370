"""What the torture tests did to the product, in one table: `tally("kill -9 of the driver", 30, 30, 0)`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One kind of fault: how often it was injected, how often the product came through, what it lost."""

    what: str
    injected: int
    survived: int
    lost: int  # rows, files or answers that were there and are gone, or are wrong
    silent: int = 0  # losses after which the product said that all was well


LINES: list[Line] = []


def tally(kind: str, injected: int, survived: int, lost: int, silent: int = 0) -> None:
    """Add a line to the table. Call it before the assertions, so that a failed test is in the table too."""
    LINES.append(Line(kind, injected, survived, lost, silent))


def as_text(lines: list[Line]) -> str:
    """The table for people: what | injected | survived | lost | silent."""
    cells = [("what", "injected", "survived", "lost", "silent"), *(tuple(map(str, astuple(line))) for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    return "\n".join(
        " | ".join([row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in range(1, 5))])
        for row in cells
    )


def write(lines: list[Line], target: str | None = None) -> None:
    """Write the table as JSON to the file that TORTURE_TABLE names, if it does."""
    target = os.environ.get("TORTURE_TABLE") if target is None else target
    if target:
        path = Path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8")
