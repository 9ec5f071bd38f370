"""What a person sees while something takes long: a bar on standard error of a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def terminal_bar(total: int, before: str, after: str, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar with the number done of `total` and the time left; yields a function that updates it.

    Parameters
    ----------
    before, after : texts on both sides of the bar, with `{task.fields[name]}` where a field is shown.
    fields : what they show to begin with.

    Yields
    ------
    update : takes `advance=` or `completed=`, and fields that have changed.
    """
    with terminal_bars({"": total}, before, after, **fields) as update:
        yield lambda **changes: update("", **changes)


@contextmanager
def terminal_bars(totals: Mapping[str, int], before: str, after: str, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar for each of several parts, as `terminal_bar`; the function yielded takes the name of the part first."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or not any(totals.values()):
        yield lambda part, **changes: None
        return
    columns = (
        TextColumn(before),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(after),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {part: progress.add_task("", total=total, part=part, **fields) for part, total in totals.items()}
        yield lambda part, **changes: progress.update(bars[part], **changes)
