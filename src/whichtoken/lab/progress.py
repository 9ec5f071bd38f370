"""Points done, failed and time left, while a sweep runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from whichtoken.progress import terminal_bar

Tick = Callable[[str, bool], None]  # (experiment id, whether the row failed)


@contextmanager
def progress_bar(total: int) -> Iterator[Tick]:
    """A bar with points done, failed and time left, on standard error."""
    failures = 0
    with terminal_bar(
        total,
        "[bold]{task.fields[experiment]}",
        "{task.fields[failed]} failed",
        experiment="starting workers",
        failed=failures,
    ) as update:

        def tick(experiment: str, failed: bool) -> None:
            nonlocal failures
            failures += failed
            update(advance=1, experiment=experiment, failed=failures)

        yield tick
