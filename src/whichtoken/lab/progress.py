"""Points done, failed and time left, while a sweep runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from whichtoken.progress import progress_lines, terminal_bars

Tick = Callable[[str, bool], None]  # (experiment id, whether the row failed)
ALL = "all claims"


@contextmanager
def theory_bars(experiments: Iterable[str]) -> Iterator[Tick]:
    """How far the points are, on standard error: bars for each theory on a terminal, elsewhere a line every few seconds.

    Parameters
    ----------
    experiments : ids of the experiments that the points to compute belong to, one for each point.
    """
    from rich.console import Console

    totals = Counter(map(_theory, experiments))
    if not Console(stderr=True).is_terminal:
        with _lines(totals.total()) as tick:
            yield tick
        return
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


@contextmanager
def _lines(total: int) -> Iterator[Tick]:
    done, latest = Counter[bool](), ""

    def tick(experiment: str, failed: bool) -> None:
        nonlocal latest
        done[failed] += 1
        latest = experiment

    def describe() -> str:
        failures = f", {done[True]} failed" if done[True] else ""
        return f"{done.total()} of {total} points{failures}{'; ' if latest else ''}{latest}"

    with progress_lines(describe):
        yield tick


def _theory(experiment: str) -> str:
    return experiment.partition("/")[0]
