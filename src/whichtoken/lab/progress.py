"""What a person sees while points are computed: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tick = Callable[[str, bool], None]  # (experiment id, whether the row failed)


@contextmanager
def progress_bar(total: int) -> Iterator[Tick]:
    """A bar with points done, failed and time left, on standard error."""
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
    if not console.is_terminal or not total:
        yield lambda experiment, failed: None
        return
    columns = (
        TextColumn("[bold]{task.fields[experiment]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, experiment="starting workers", failed=0)

        def tick(experiment: str, failed: bool) -> None:
            failures = progress.tasks[bar].fields["failed"] + failed
            progress.update(bar, advance=1, experiment=experiment, failed=failures)

        yield tick
