"""From the ledger of the long runs to the record: `python -m whichtoken.lab.recording FOLDER`.

Runs that are complete replace what the record has of their claim and preset; the others are named and left as they are.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whichtoken.files import replacing, write_text
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import experiments
from whichtoken.lab.ledger import FAILED_PREDICTION, Judged, Ledger, Run
from whichtoken.lab.plan import RunTask
from whichtoken.lab.record import VERDICTS, RecordedRun, record_folder, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import Result, stored_results
from whichtoken.machine import machine, part_versions
from whichtoken.places import LEDGER_NAME

KEPT_ROWS = ("full", "paper")  # the rows of quick are made again in minutes


def record(out: Path) -> list[str]:
    """Put the complete runs of a ledger on record; the runs that are not complete come back in words."""
    left = []
    complete: dict[str, list[Result]] = defaultdict(list)
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        for result in stored_results(ledger):
            if not result.plan.as_declared or not _is_own(result):
                continue
            absent = sum(task.point in result.plan.absent for task in result.plan.tasks)
            if result.fault or result.missing > absent:
                left.append(f"{result.id} {result.preset}: {result.fault or f'{result.missing} rows missing'}")
            else:
                complete[result.id].append(result)
    runs = {key: run for key, run in recorded_runs().items() if _is_present(run)}
    for experiment, results in complete.items():
        runs |= {(result.id, result.preset): _summary(result) for result in results}
        _keep_rows(experiment, [result for result in results if result.preset in KEPT_ROWS])
    write_verdicts(runs)
    return left


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
        result.id, result.preset, result.experiment.version, result.started, machine(), part_versions(),
        result.points, len(result.all_rows), result.failed, round(result.seconds, 1), tuple(result.verdicts),
    )  # fmt: skip


def _keep_rows(experiment: str, results: Iterable[Result]) -> None:
    """Pack the rows of these runs, beside those on record of the claim's other presets."""
    fresh = {result.preset: result for result in results if result.all_rows}
    if not fresh:
        return
    if rows_file(experiment).is_file():
        with recorded_ledger(experiment) as ledger:
            older = [result for result in stored_results(ledger) if result.preset not in fresh and not result.missing]
    else:
        older = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER_NAME
        with Ledger.writing(path) as ledger:
            for result in [*older, *fresh.values()]:
                _copy(result, ledger)
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
    texts = {id(point): text for text, point in plan.points.items()}
    for row in {id(row.point): row for row in result.all_rows}.values():  # rows of one point share their prediction
        message = row.message.removeprefix(FAILED_PREDICTION) if row.message.startswith(FAILED_PREDICTION) else ""
        ledger.put_prediction(version, RunTask(result.id, texts[id(row.point)], None), row.predicted, message)
    for row in result.all_rows:
        if not row.message.startswith(FAILED_PREDICTION):
            ledger.put(version, RunTask(result.id, texts[id(row.point)], row.seed), row)


def record_and_tell(out: str | Path) -> None:
    """Put the runs of a folder on record, and print what came of it."""
    left = record(Path(out))
    for line in left:
        print(f"not recorded, {line}")
    size = sum(path.stat().st_size for path in record_folder().rglob("*") if path.is_file())
    print(f"{len(recorded_runs())} runs on record, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    record_and_tell(sys.argv[1])
