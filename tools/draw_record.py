"""Draw the figures of the record that are out of date: `python tools/draw_record.py`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from whichtoken.app.pages.drawn import FIGURES, STORED, checksums, figures_file, is_current, read_figures
from whichtoken.app.pages.experiment_page import RunSection, view_of
from whichtoken.app.pages.sentences import place_of
from whichtoken.errors import UsageError
from whichtoken.files import replacing
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.plan import RunPlan
from whichtoken.lab.record import record_folder, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import stored_results

MOST_BYTES = 3_000_000  # of all files together, which are part of the wheel


def renew() -> list[str]:
    """Draw the figures that are out of date, and return their claims."""
    drawn = out_of_date()
    for id in drawn:
        claim = experiments()[id]
        _write(id, {**checksums(claim), "runs": dict(_drawn_runs(claim))})
    for path in (record_folder() / FIGURES).rglob("*.json.xz"):
        if path not in map(figures_file, _kept()):
            path.unlink()
    size = sum(path.stat().st_size for path in (record_folder() / FIGURES).rglob("*.json.xz"))
    if size > MOST_BYTES:
        raise UsageError(f"the recorded figures take {size:,} bytes, more than {MOST_BYTES:,}; draw fewer marks")
    return drawn


def out_of_date() -> list[str]:
    """Claims whose rows or drawing code have changed since their recorded figures were drawn."""
    return [id for id in _kept() if (stored := read_figures(id)) is None or not is_current(experiments()[id], stored)]


def _kept() -> list[str]:
    """Claims whose rows are on record."""
    return sorted({id for id, _ in recorded_runs() if rows_file(id).is_file()})


def _drawn_runs(claim: Experiment[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    with recorded_ledger(claim.id) as ledger:
        for result in stored_results(ledger):
            if result.plan.as_declared and (claim.id, result.preset) in recorded_runs():
                yield result.preset, _stored(view_of(result, place_of(result.preset)), result.plan)


def _stored(view: RunSection, plan: RunPlan) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(replace(view, study=None)).items() if name in STORED}  # type: ignore[arg-type]
    fields["fixed"] = {name: str(value) for name, value in view.fixed.items()}
    repeats = None if plan.repeats is None else [plan.repeats[text] for text in plan.points]
    return {**fields, "missing": view.study.missing, "repeats": repeats}


def _write(id: str, content: dict[str, Any]) -> None:
    path = figures_file(id)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as place:
        place.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))


if __name__ == "__main__":
    for id in renew():
        print(f"drawn: {id}")
