"""From the ledger of the long runs to the record, and back: `python -m whichtoken.lab.recording FOLDER [--begin]`.

Runs that are complete replace what the record has of their claim and preset; the others are named and left as they are, but for
their rows, which are kept too. `--begin` fills a new ledger with the rows on record, so that the long runs go on where they
stopped, on whatever machine.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from whichtoken.files import replacing, write_text
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Row
from whichtoken.lab.ledger import FAILED_PREDICTION, Judged, Ledger, Run
from whichtoken.lab.plan import RunPlan, RunTask, make_plan
from whichtoken.lab.power import power
from whichtoken.lab.record import POWER, VERDICTS, RecordedRun, record_folder, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import Result, stored_results, with_repeats
from whichtoken.lab.worker import work
from whichtoken.machine import machine, part_versions
from whichtoken.places import LEDGER_NAME

KEPT_ROWS = ("full", "paper")  # the rows of quick are made again in minutes


def record(out: Path) -> list[str]:
    """Put the complete runs of a ledger on record; the runs that are not complete come back in words."""
    left = []
    complete: dict[str, list[Result]] = defaultdict(list)
    begun: dict[str, list[Result]] = defaultdict(list)
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        for result in stored_results(ledger):
            if not result.plan.as_declared or not _is_own(result):
                continue
            absent = sum(task.point in result.plan.absent for task in result.plan.tasks)
            if result.fault or result.missing > absent:
                left.append(f"{result.id} {result.preset}: {result.fault or f'{result.missing} rows missing'}")
                begun[result.id].append(result)
            else:
                complete[result.id].append(result)
    runs = {key: run for key, run in recorded_runs().items() if _is_present(run)}
    for experiment in complete.keys() | begun.keys():
        runs |= {(result.id, result.preset): _summary(result) for result in complete[experiment]}
        _keep_rows(experiment, _kept(complete[experiment]), _kept(begun[experiment]))
    write_verdicts(runs)
    write_power()
    return left


def _kept(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.preset in KEPT_ROWS and result.all_rows]


def begin(out: Path) -> int:
    """Fill a ledger that does not exist yet with the rows on record that are of the claims as they are now; their number."""
    if (out / LEDGER_NAME).exists():
        return 0
    copied: set[RunTask] = set()  # presets share points
    with Ledger.writing(out / LEDGER_NAME) as ledger:
        for claim in experiments().values():
            if rows_file(claim.id).is_file():
                with recorded_ledger(claim.id) as source:
                    for preset in claim.presets:
                        plan = make_plan(claim, preset).largest
                        copied |= _put_rows(plan, source.rows(plan), ledger)
    return len(copied)


def write_verdicts(runs: Mapping[tuple[str, str], RecordedRun]) -> None:
    """One verdict a line, in the order of their names, so that a change of the record can be read as a difference."""
    lines = []
    for key in sorted(runs):
        fields: dict[str, Any] = asdict(runs[key])
        verdicts = ",\n  ".join(canonical_json(verdict) for verdict in fields.pop("verdicts"))
        lines.append(f'{canonical_json(fields)[:-1]},"verdicts":[\n  {verdicts}]}}')
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    json.loads(text)
    write_text(record_folder() / VERDICTS, text)
    recorded_runs.cache_clear()


def _is_present(run: RecordedRun) -> bool:
    """Whether a run on record is of the claim as it is now."""
    experiment = experiments().get(run.experiment)
    return experiment is not None and run.preset in experiment.presets and run.version == experiment.version


def _is_own(result: Result) -> bool:
    return type(result.experiment).__module__.startswith("whichtoken.experiments.")


def _summary(result: Result) -> RecordedRun:
    return RecordedRun(
        result.id, result.preset, result.experiment.version, result.started, machine(),
        part_versions() | {"whichtoken": ", ".join(result.package_versions)},
        result.points, len(result.all_rows), result.failed, round(result.seconds, 1), tuple(result.verdicts),
    )  # fmt: skip


def write_power() -> None:
    """What each recorded verdict that agrees would have noticed, by claim, beside the verdicts."""
    found = {}
    for (experiment, preset), run in sorted(recorded_runs().items()):
        if preset == "full" and _is_present(run) and rows_file(experiment).is_file():
            with recorded_ledger(experiment) as ledger:
                plan = with_repeats(make_plan(experiments()[experiment], "full"), ledger)
                found[experiment] = {item.code: [item.kind, *item.notices] for item in power(plan, ledger.rows(plan))}
    lines = [f"{canonical_json(name)}:{canonical_json(codes)}" for name, codes in found.items()]
    write_text(record_folder() / POWER, "{\n" + ",\n".join(lines) + "\n}\n")


def _keep_rows(experiment: str, complete: Iterable[Result], begun: Iterable[Result]) -> None:
    """Pack the rows of these runs, beside those on record of the claim's other presets."""
    fresh, unfinished = ({result.preset: result for result in results} for results in (complete, begun))
    if not fresh and not unfinished:
        return
    if rows_file(experiment).is_file():
        with recorded_ledger(experiment) as ledger:
            others = (result for result in stored_results(ledger) if result.preset not in fresh | unfinished)
            older = [result for result in others if not result.missing]
    else:
        older = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER_NAME
        with Ledger.writing(path) as ledger:
            for result in [*older, *fresh.values()]:
                _copy(result, ledger)
            for result in unfinished.values():
                _put_rows(result.plan, _by_task(result), ledger)
            _put_spot(experiment, ledger)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript("PRAGMA journal_mode=DELETE; VACUUM")
        target = rows_file(experiment)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as place:
            place.write_bytes(lzma.compress(path.read_bytes(), preset=9))


def _copy(result: Result, ledger: Ledger) -> None:
    plan, version = result.plan, result.experiment.version
    run = Run(result.id, plan.preset, plan.overrides, plan.seeds, result.started)
    ledger.put_run(run)
    verdicts = [asdict(verdict) for verdict in result.verdicts]
    ledger.put_verdicts(run, Judged(result.started, version, verdicts, result.fault))
    _put_rows(plan, _by_task(result), ledger)


def _by_task(result: Result) -> dict[RunTask, Row[Any]]:
    texts = {id(point): text for text, point in result.plan.points.items()}
    return {
        RunTask(result.id, texts[id(row.point)], None if row.message.startswith(FAILED_PREDICTION) else row.seed): row
        for row in result.all_rows
    }


def _put_rows(plan: RunPlan, rows: Mapping[RunTask, Row[Any]], ledger: Ledger) -> set[RunTask]:
    """Copy rows with their predictions, which the rows of a point share; what was copied."""
    version = plan.experiment.version
    for task, row in {task.point: (task, row) for task, row in rows.items()}.values():
        message = row.message.removeprefix(FAILED_PREDICTION) if task.seed is None else ""
        ledger.put_prediction(version, replace(task, seed=None), row.predicted, message)
    finished = {task: row for task, row in rows.items() if task.seed is not None}
    for task, row in finished.items():
        ledger.put(version, task, row)
    return set(finished)


def _put_spot(experiment: str, ledger: Ledger) -> None:
    """The row of a small point, for claims whose rows take too long to be computed again by every run of the tests."""
    claim = experiments()[experiment]
    if claim.spot is None:
        return
    task = RunTask(experiment, canonical_json(vars(claim.spot)), 0)
    work(task)  # imports and compilation are not the row's
    outcome = work(task)
    row: Row[Any] = Row(
        claim.spot, 0, outcome.status, outcome.message, outcome.values, outcome.seconds, outcome.package_version
    )
    ledger.put(claim.version, task, row)


def begin_and_tell(out: str | Path) -> None:
    """Fill a new ledger from the record, and print with how much."""
    print(f"{begin(Path(out))} rows taken from the record")


def record_and_tell(out: str | Path) -> None:
    """Put the runs of a folder on record, and print what came of it."""
    left = record(Path(out))
    for line in left:
        print(f"not recorded, {line}")
    size = sum(path.stat().st_size for path in record_folder().rglob("*") if path.is_file())
    print(f"{len(recorded_runs())} runs on record, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    (begin_and_tell if "--begin" in sys.argv else record_and_tell)(sys.argv[1])
