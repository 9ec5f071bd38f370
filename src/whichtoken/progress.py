"""Progress of long tasks: bars on a terminal, a line every few seconds in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from whichtoken.display import terminal

LINE_SECONDS = 4.0  # between two lines of progress


@contextmanager
def terminal_bar(total: int, before: str, after: str, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar with the number done of `total` and the time left; yields a function that updates it.

    Parameters
    ----------
    before, after : texts on both sides of the bar, with `{task.fields[name]}` where a field is shown.
    fields : initial values of the fields.

    Yields
    ------
    update : takes `advance=` or `completed=`, and fields that have changed.
    """
    with terminal_bars({"": total}, before, after, **fields) as update:
        yield lambda **changes: update("", **changes)


@contextmanager
def terminal_bars(totals: Mapping[str, int], before: str, after: str, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar for each of several parts, as `terminal_bar`; the function yielded takes the name of the part first."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    if terminal.quiet or not console.is_terminal or not any(totals.values()):
        yield lambda part, **changes: None
        return
    texts = rich.TextColumn(before), rich.TextColumn(after), rich.TextColumn("left")
    done, elapsed, remaining = rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    columns = (texts[0], rich.BarColumn(), done, texts[1], elapsed, texts[2], remaining)
    with rich.Progress(*columns, console=console, transient=True) as progress:
        bars = {part: progress.add_task("", total=total, part=part, **fields) for part, total in totals.items()}
        yield lambda part, **changes: progress.update(bars[part], **changes)


@contextmanager
def progress_lines(describe: Callable[[], str] = lambda: "still working") -> Iterator[None]:
    """Print the text of `describe` and the seconds so far, every few seconds while the block runs.

    From a thread, so that lines appear also while one piece of work takes long; on standard error; nothing under --quiet.
    """
    if terminal.quiet:
        yield
        return
    finished, began = Event(), time.monotonic()

    def print_lines() -> None:
        while not finished.wait(LINE_SECONDS):
            with suppress(OSError, ValueError):  # a closed or full stream must not end the computation
                print(f"      {describe()} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    thread = Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
