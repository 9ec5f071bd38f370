"""Copy the ledger of the long runs to the record, and back: `python tools/recording.py FOLDER [--begin]`.

Complete runs replace the recorded run of their claim and preset. Of the others, only the rows are kept, and their names are
printed. `--begin` fills a new ledger with the recorded rows, so that the long runs resume on any machine. Without a folder, the
recorded rows are judged again, as after a change of a claim's `judge`.
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

from whichtoken.files import LEDGER_NAME, replacing, write_text
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.ledger import FAILED_PREDICTION, Ledger
from whichtoken.lab.plan import RunPlan, RunTask, make_plan
from whichtoken.lab.record import (
    POWER,
    STATEMENTS,
    VERDICTS,
    RunSummary,
    record_folder,
    recorded_ledger,
    recorded_runs,
    rows_file,
)
from whichtoken.lab.results import Result, judge, stored_results, with_stored_repeats
from whichtoken.lab.statements import judge_papers
from whichtoken.lab.verdicts import Check, shared_level
from whichtoken.lab.worker import work
from whichtoken.machine import machine, part_versions

CHANGES = (0.05, 0.1)  # shares of a prediction


def power(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> dict[str, list[str | bool]]:
    """Which errors the checks of a plan that agree on these rows would have detected.

    By code: the comparison of the check, then for each of `CHANGES` whether the verdict is no longer `agrees` if the theory is
    wrong by that share, either way. A bound is changed in the direction that makes it harder to keep.
    """
    checks = list(plan.experiment.judge(Rows.sorted(stored.values())))
    level = shared_level(checks, plan.looks)
    return {
        check.code: [check.comparison, *(notices(check, level, change) for change in CHANGES)]
        for check in checks
        if check.theory is not None and check.settle(level).state == "agrees"
    }


def notices(check: Check, level: float, change: float) -> bool:
    """Whether the verdict would not be `agrees` if the theory were off by this share of it, either way.

    A theory that says 0 is changed by the check's material amount instead; without one, nothing is detected. A pooled check
    detects what one of its points does.
    """
    if check.parts:
        return any(notices(part, level, change) for part in check.parts if part.theory is not None)
    assert check.theory is not None
    amount = abs(check.theory) * change if check.theory else check.material
    if amount is None or check.comparison == "not run":
        return False
    signs = {"equal": (-1, 1), "at least": (1,), "at most": (-1,)}[check.comparison]
    return all(replace(check, theory=check.theory + sign * amount).settle(level).state != "agrees" for sign in signs)


RECORDED = ("preset", "version", "machine", "versions", "points", "rows", "failed", "seconds")  # of a run
KEPT_ROWS = ("full", "paper")  # the rows of quick are made again in minutes


def finish_recording(out: str | Path) -> None:
    """Put the complete runs of a folder's ledger on record, and print what was left out."""
    complete: dict[str, list[Result]] = defaultdict(list)
    unfinished: dict[str, list[Result]] = defaultdict(list)
    with Ledger.reading(Path(out) / LEDGER_NAME) as ledger:
        for result in stored_results(ledger):
            if not result.plan.as_declared or not type(result.experiment).__module__.startswith("whichtoken.claims."):
                continue
            absent = sum(task.point in result.plan.absent for task in result.plan.tasks)
            if result.fault or result.missing > absent:
                reason = result.fault or f"{result.missing} rows missing"
                print(f"not recorded, {result.id} {result.preset}: {reason}")
                unfinished[result.id].append(result)
            else:
                complete[result.id].append(result)
    runs = {key: run for key, run in recorded_runs().items() if _is_current(run)}
    for experiment in complete.keys() | unfinished.keys():
        runs |= {(result.id, result.preset): _summary(result) for result in complete[experiment]}
        _keep_rows(experiment, complete[experiment], unfinished[experiment])
    write_verdicts(runs)
    write_statements()
    write_power()
    size = sum(path.stat().st_size for path in record_folder().rglob("*") if path.is_file())
    print(f"{len(recorded_runs())} runs on record, {size / 2**20:.1f} MiB")


def judge_record() -> None:
    """Judge the recorded rows of every claim again, and print what cannot be judged because rows are missing."""
    runs = {key: run for key, run in recorded_runs().items() if _is_current(run)}
    for claim in experiments().values():
        for preset in KEPT_ROWS if rows_file(claim.id).is_file() else ():
            if preset not in claim.presets:
                continue
            with recorded_ledger(claim.id) as ledger:
                plan = with_stored_repeats(make_plan(claim, preset), ledger)
                started = {run.preset: run.started for run in ledger.runs() if run.as_declared}.get(preset, "")
                result = judge(plan, ledger.rows(plan), started)
            absent = sum(task.point in plan.absent for task in plan.tasks)
            if result.fault or result.missing > absent:
                print(f"not judged, {claim.id} {preset}: {result.fault or f'{result.missing} rows missing'}")
                continue
            found, before = _summary(result), runs.get((claim.id, preset))
            if before is not None:
                found = replace(found, machine=before.machine, versions=before.versions)
            runs[claim.id, preset] = found
    write_verdicts(runs)
    write_statements()
    write_power()


def start_recording(out: str | Path) -> None:
    """Fill a ledger that does not exist yet with the recorded rows of the present claims, and print their number."""
    path = Path(out) / LEDGER_NAME
    copied: set[RunTask] = set()  # presets share points
    if not path.exists():
        with Ledger.writing(path) as ledger:
            for claim in experiments().values():
                if rows_file(claim.id).is_file():
                    with recorded_ledger(claim.id) as source:
                        for preset in claim.presets:
                            plan = make_plan(claim, preset).largest
                            copied |= _put_rows(plan, source.rows(plan), ledger)
    print(f"{len(copied)} rows taken from the record")


def write_verdicts(runs: Mapping[tuple[str, str], RunSummary]) -> None:
    """Write one verdict a line, sorted, so that changes of the record are readable in a diff."""
    lines = []
    for key in sorted(runs):
        run = runs[key]
        fields = {"experiment": run.id, "date": run.started, **{name: getattr(run, name) for name in RECORDED}}
        verdicts = ",\n  ".join(canonical_json(asdict(verdict)) for verdict in run.verdicts)
        lines.append(f'{canonical_json(fields)[:-1]},"verdicts":[\n  {verdicts}]}}')
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    json.loads(text)
    write_text(record_folder() / VERDICTS, text)
    recorded_runs.cache_clear()


def _is_current(run: RunSummary) -> bool:
    """Whether a recorded run is of the present version of its claim."""
    experiment = experiments().get(run.id)
    return experiment is not None and run.preset in experiment.presets and run.version == experiment.version


def _summary(result: Result) -> RunSummary:
    versions = part_versions() | {"whichtoken": ", ".join(result.package_versions)}
    return replace(result.summary, machine=machine(), versions=versions, seconds=round(result.seconds, 1))


def write_statements() -> None:
    """Write the answer to every statement, one a line, with the verdicts that it follows from."""
    lines = []
    for paper in judge_papers(recorded_runs().values()):
        for judged in (*paper.statements, *paper.ours):
            lines.append(
                canonical_json(
                    {
                        "source": paper.source.id,
                        "id": judged.statement.id,
                        "place": judged.statement.place,
                        "says": judged.statement.says,
                        "answer": judged.answer,
                        "regime": judged.regime,
                        "evidence": [[item.claim, item.preset, item.verdict.code] for item in judged.evidence],
                    }
                )
            )
    write_text(record_folder() / STATEMENTS, "[\n" + ",\n".join(lines) + "\n]\n")


def write_power() -> None:
    """Write which errors each recorded verdict that agrees would have detected, by claim."""
    found = {}
    for (experiment, preset), run in sorted(recorded_runs().items()):
        if preset == "full" and _is_current(run) and rows_file(experiment).is_file():
            with recorded_ledger(experiment) as ledger:
                plan = with_stored_repeats(make_plan(experiments()[experiment], "full"), ledger)
                found[experiment] = power(plan, ledger.rows(plan))
    lines = [f"{canonical_json(name)}:{canonical_json(codes)}" for name, codes in found.items()]
    write_text(record_folder() / POWER, "{\n" + ",\n".join(lines) + "\n}\n")


def _keep_rows(experiment: str, complete: Iterable[Result], unfinished: Iterable[Result]) -> None:
    """Pack the rows of these runs, together with the recorded rows of the claim's other presets."""
    fresh, begun = (
        {result.preset: result for result in results if result.preset in KEPT_ROWS and result.all_rows}
        for results in (complete, unfinished)
    )
    if not fresh and not begun:
        return
    if rows_file(experiment).is_file():
        with recorded_ledger(experiment) as ledger:
            others = (result for result in stored_results(ledger) if result.preset not in fresh | begun)
            older = [result for result in others if not result.missing]
    else:
        older = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER_NAME
        with Ledger.writing(path) as ledger:
            for result in [*older, *fresh.values()]:
                ledger.put_run(result.summary)
                ledger.put_verdicts(result.summary)
                _put_rows(result.plan, _by_task(result), ledger)
            for result in begun.values():
                _put_rows(result.plan, _by_task(result), ledger)
            _put_spot(experiment, ledger)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript("PRAGMA journal_mode=DELETE; VACUUM")
        target = rows_file(experiment)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as place:
            place.write_bytes(lzma.compress(path.read_bytes(), preset=9))


def _by_task(result: Result) -> dict[RunTask, Row[Any]]:
    texts = {id(point): text for text, point in result.plan.points.items()}
    return {
        RunTask(result.id, texts[id(row.point)], None if row.message.startswith(FAILED_PREDICTION) else row.seed): row
        for row in result.all_rows
    }


def _put_rows(plan: RunPlan, rows: Mapping[RunTask, Row[Any]], ledger: Ledger) -> set[RunTask]:
    """Copy rows with their predictions, which the rows of a point share; returns the copied tasks."""
    version = plan.experiment.version
    for task, row in {task.point: (task, row) for task, row in rows.items()}.values():
        message = row.message.removeprefix(FAILED_PREDICTION) if task.seed is None else ""
        ledger.put_prediction(version, replace(task, seed=None), row.predicted, message)
    finished = {task: row for task, row in rows.items() if task.seed is not None}
    for task, row in finished.items():
        ledger.put(version, task, row)
    return set(finished)


def _put_spot(experiment: str, ledger: Ledger) -> None:
    """Store the row of a small point, for claims whose rows take too long to be recomputed by the tests."""
    claim = experiments()[experiment]
    if claim.spot is None:
        return
    task = RunTask(experiment, canonical_json(vars(claim.spot)), 0)
    work(task)  # imports and compiles, which is not part of the row's time
    outcome = work(task)
    row: Row[Any] = Row(
        claim.spot, 0, outcome.status, outcome.message, outcome.values, outcome.seconds, outcome.package_version
    )
    ledger.put(claim.version, task, row)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        judge_record()
    else:
        (start_recording if "--begin" in sys.argv else finish_recording)(sys.argv[1])
