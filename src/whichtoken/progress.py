"""What a person sees while something takes long: bars on a terminal, a line every few seconds in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

LINE_SECONDS = 4.0  # between two lines of progress

quiet = False  # set by --quiet: no progress is shown


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
    if quiet or not console.is_terminal or not any(totals.values()):
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


@contextmanager
def progress_lines(describe: Callable[[], str] = lambda: "still working") -> Iterator[None]:
    """Print what `describe` says, with the seconds so far, every few seconds while the block runs.

    From a thread, so that lines come also while one piece of work takes long; on standard error; nothing under --quiet.
    """
    if quiet:
        yield
        return
    finished, began = Event(), time.monotonic()

    def speak() -> None:
        while not finished.wait(LINE_SECONDS):
            with suppress(OSError, ValueError):  # a stream that is closed or full ends no computation
                print(f"      {describe()} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    thread = Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
