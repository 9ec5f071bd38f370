"""Run claims: plan, compute what is missing, store each row as it finishes, judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError, unknown
from whichtoken.files import DEFAULT_FOLDER, LEDGER_NAME
from whichtoken.lab.discovery import experiments, find
from whichtoken.lab.engines import Engine, parse_engine, time_limit
from whichtoken.lab.experiment import Experiment, Row
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import RunPlan, RunTask, check_size, make_plan
from whichtoken.lab.record import RunSummary
from whichtoken.lab.results import Result, judge_and_store, with_adaptive_repeats
from whichtoken.lab.worker import Outcome
from whichtoken.progress import progress_lines, terminal_bars

Tick = Callable[[str, bool], None]  # called with the id of the experiment and whether the row failed
Progress = Callable[[int], AbstractContextManager[Tick]]
ALL = "all claims"


def reproduce(
    ids: Iterable[str] | None = None,
    preset: str = "quick",
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    fresh: bool = False,
    engine: str = "local",
    workers: int | None = None,
    timeout: float | str | None = None,
    out: str | Path = DEFAULT_FOLDER,
    progress: Progress | None = None,
) -> list[Result]:
    """Check claims: compute the points that the ledger in `out` does not have, and judge.

    Use it to see whether a claim holds at the sizes of its presets or, with `overrides`, at your own.

    Parameters
    ----------
    ids : iterable of str, optional
        Experiments to run; all that have the preset when not given.
    preset : str, default="quick"
        Quick, full or paper.
    overrides : Mapping[str, Any], optional
        Fields of the points to override; a list makes a grid.
    seeds : int, optional
        Number of repeats of each point instead of the preset's.
    fresh : bool, default=False
        Compute stored rows again, too; each stays until its successor is finished.
    engine : str, default="local"
        Local, dask (a cluster on this machine) or dask://host:port.
    workers : int, optional
        Number of worker processes; one per available core when not given.
    timeout : float or str, optional
        Seconds that one point may take, after which its worker is stopped and the row is failed; when not given, an
        hour for quick, six hours for full and two days for paper. `inf` means no limit.
    out : str or Path, default="whichtoken-output"
        Folder of the ledger.
    progress : callable, optional
        Called with the number of points to compute; shows the progress. Bars on the terminal when not given.

    Returns
    -------
    list of Result
        One per experiment, in the order of `ids`.

    Raises
    ------
    UsageError
        If an experiment, a field or the engine is unknown, or the ledger cannot be used.

    Examples
    --------
    >>> from whichtoken.lab import reproduce
    >>> [result] = reproduce(["mirror-descent/direction"], overrides={"p": [1.5, 2.0]}, seeds=5)  # doctest: +SKIP
    >>> for verdict in result.verdicts:  # doctest: +SKIP
    ...     print(verdict.state, verdict.claim)
    """
    plans = [make_plan(experiment, preset, overrides, seeds) for experiment in _choose_experiments(ids, preset)]
    check_size(plans)
    runner = parse_engine(engine, workers, time_limit(timeout, preset))
    with Ledger.writing(Path(out) / LEDGER_NAME) as ledger:
        started = datetime.now(UTC).isoformat(timespec="microseconds")
        for plan in plans:
            ledger.put_run(RunSummary(plan.experiment.id, plan.preset, plan.overrides, plan.seeds, started))
            if fresh:
                ledger.forget_verdicts(plan.experiment.id)
        _compute(plans, ledger, runner, fresh, progress)
        return [judge_and_store(plan, ledger, started) for plan in plans]


def _choose_experiments(ids: Iterable[str] | None, preset: str) -> list[Any]:
    if ids:
        return [find(experiment_id) for experiment_id in dict.fromkeys(ids)]
    chosen = [experiment for experiment in experiments().values() if preset in experiment.presets]
    if not chosen:
        raise unknown("preset", preset, {name for experiment in experiments().values() for name in experiment.presets})
    return chosen


def _compute(plans: list[RunPlan], ledger: Ledger, engine: Engine, fresh: bool, progress: Progress | None) -> None:
    """Run the tasks of all plans in one pool, so that no worker waits for the slowest point of one experiment.

    Undecided claims may ask for more repeats, which the next round computes.
    """
    owner = {plan.experiment.id: plan for plan in plans}
    renewed: set[RunTask] = set()  # computed by this run
    while True:
        parts = [_missing_tasks(plan, ledger, renewed if fresh else None) for plan in plans]
        # the plans take turns, so that workers start with different claims and compile different kernels
        tasks = [task for turn in zip_longest(*parts) for task in turn if task is not None]
        if not tasks:
            return
        unfinished = set(tasks)
        bars = progress(len(tasks)) if progress else theory_bars(task.experiment for task in tasks)
        with bars as tick, closing(engine.map(tasks)) as outcomes:
            for task, outcome in outcomes:
                store_outcome(ledger, owner[task.experiment], task, outcome)
                unfinished.discard(task)
                tick(task.experiment, outcome.status == "failed")
        if unfinished:  # a run that lost something must not look like one that is complete
            raise UsageError(
                f"{len(unfinished)} of {len(tasks)} points came back without a result; "
                "finished rows are saved, and the same command computes the rest"
            )
        renewed.update(tasks)


def _missing_tasks(plan: RunPlan, ledger: Ledger, renewed: Set[RunTask] | None) -> list[RunTask]:
    """The tasks to run: predictions first, so that a theory that cannot be evaluated fails early.

    `renewed` are the tasks that count as stored if everything is computed again.
    """
    stored = ledger.rows(plan.largest)
    if renewed is not None:
        stored = {task: row for task, row in stored.items() if task in renewed}
    plan = with_adaptive_repeats(plan, stored)
    if type(plan.experiment).predict is Experiment.predict:
        predicted = set(plan.points)  # this experiment predicts nothing
    elif renewed is not None:
        predicted = {task.point for task in renewed if task.experiment == plan.experiment.id and task.seed is None}
    else:
        predicted = ledger.predicted_points(plan.experiment.id, plan.experiment.version)
    present = plan.points.keys() - plan.absent.keys()
    predictions = [
        RunTask(plan.experiment.id, text, None) for text in plan.points if text in present and text not in predicted
    ]
    return predictions + [task for task in plan.tasks if task.point in present and task not in stored]


def store_outcome(ledger: Ledger, plan: RunPlan, task: RunTask, outcome: Outcome) -> Row[Any] | None:
    """Store what a task gave, and return its row; None for a prediction."""
    version = plan.experiment.version
    if task.seed is None:
        ledger.put_prediction(version, task, outcome.values, outcome.message)
        return None
    row: Row[Any] = Row(
        plan.points[task.point], task.seed, outcome.status, outcome.message, outcome.values, outcome.seconds,
        outcome.package_version,
    )  # fmt: skip
    ledger.put(version, task, row)
    return row


@contextmanager
def theory_bars(experiments: Iterable[str]) -> Iterator[Tick]:
    """Progress on standard error: bars for each theory on a terminal, elsewhere a line every few seconds.

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
