"""Points done, failed and time left, while a sweep runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from whichtoken.progress import terminal_bars

Tick = Callable[[str, bool], None]  # (experiment id, whether the row failed)
ALL = "all claims"


@contextmanager
def theory_bars(experiments: Iterable[str]) -> Iterator[Tick]:
    """A bar for each theory and one for all of them, on standard error: points done, failed and time left.

    Parameters
    ----------
    experiments : ids of the experiments that the points to compute belong to, one for each point.
    """
    totals = Counter(map(_theory, experiments))
    parts = {**totals, ALL: totals.total()} if len(totals) > 1 else dict(totals)
    failures: Counter[str] = Counter()
    with terminal_bars(
        parts, "[bold]{task.fields[part]}[/] {task.fields[claim]}", "{task.fields[failed]} failed", claim="", failed=0
    ) as update:

        def tick(experiment: str, failed: bool) -> None:
            theory, claim = _theory(experiment), experiment.partition("/")[2]
            for part in (theory, ALL) if len(totals) > 1 else (theory,):
                failures[part] += failed
                update(part, advance=1, claim="" if part == ALL else claim, failed=failures[part])

        yield tick


def _theory(experiment: str) -> str:
    return experiment.partition("/")[0]
