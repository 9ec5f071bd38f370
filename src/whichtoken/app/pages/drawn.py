"""Stored figures: those of a report are stored beside it, those of the record are part of the package.

`record/figures/<theory>/<claim>.json.xz` has the figures and tables of the recorded rows of a claim, with checksums of the
rows and of the code that drew them. `python -m whichtoken.app.pages.drawn` renews those that are out of date.
"""

from __future__ import annotations

import inspect
import json
import lzma
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from whichtoken import __version__
from whichtoken.app.pages.experiment_page import FailedRow, Numbers, RunSection, draw_figure, view_of, view_of_record
from whichtoken.app.pages.studies import place_of
from whichtoken.display.panels import Panels
from whichtoken.errors import UsageError
from whichtoken.files import replacing, write_text
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment, Rows
from whichtoken.lab.export import rows_as_csv
from whichtoken.lab.plan import RunPlan, make_plan
from whichtoken.lab.record import RunSummary, record_folder, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import Result, stored_results

FIGURES = "figures"
MOST_BYTES = 3_000_000  # of all files together, which are part of the wheel
STORED = ("figure", "no_figure", "numbers", "fixed", "varied", "failed", "versions")  # fields of a view


def figure_beside(result: Result, rows: str, number: int, path: Path) -> tuple[Panels | None, str]:
    """The figure of a run, read from `path` if it was drawn from these rows by this code, otherwise drawn.

    Parameters
    ----------
    rows : the rows of the run as CSV.
    number : tells runs of one claim apart.
    path : the file of the figure; a damaged file is written again.
    """
    parts = (__version__, version("matplotlib"), _source(type(result.experiment)), str(number), rows)
    key = sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
    try:
        stored = json.loads(path.read_bytes())
        if stored.pop("key") == key:
            return _panels(stored), ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    figure, fault = draw_figure(result, number)
    if figure is not None:
        write_text(path, json.dumps({"key": key, **asdict(figure)}))
    return figure, fault


@dataclass(frozen=True)
class RecordedViews:
    """The views of the recorded runs of a claim that have rows, by preset."""

    views: dict[str, RunSection]
    repeats: dict[str, list[int] | None]  # of the points of each plan, if the claim has asked for more

    def rows(self, claim: Experiment[Any]) -> Iterator[tuple[RunSection, str]]:
        """The rows of each run as CSV, without its verdicts."""
        with recorded_ledger(claim.id) as ledger:
            for preset, view in self.views.items():
                plan, repeats = make_plan(claim, preset), self.repeats[preset]
                if repeats is not None:
                    plan = replace(plan, repeats=dict(zip(plan.points, repeats, strict=True)))
                found: Rows[Any] = Rows.sorted(ledger.rows(plan).values())
                yield view, rows_as_csv([*found, *found.failed])


def recorded_views(claim: Experiment[Any], runs: dict[str, RunSummary]) -> RecordedViews | None:
    """The stored views of these recorded runs; None if there are none, or they are out of date."""
    stored = _read(claim.id)
    if stored is None or (rows_file(claim.id).is_file() and not _is_current(claim, stored)):
        return None
    try:
        views = {
            preset: replace(view_of_record(replace(runs[preset], missing=fields["missing"])), **_restored(fields))
            for preset, fields in stored["runs"].items()
            if preset in runs
        }
        repeats = {preset: stored["runs"][preset]["repeats"] for preset in views}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    there = rows_file(claim.id).is_file()
    return RecordedViews({preset: replace(view, has_rows=there) for preset, view in views.items()}, repeats)


def renew() -> list[str]:
    """Draw the figures that are out of date, and return their claims."""
    drawn = out_of_date()
    for id in drawn:
        claim = experiments()[id]
        _write(id, {**_checksums(claim), "runs": dict(_drawn_runs(claim))})
    for path in (record_folder() / FIGURES).rglob("*.json.xz"):
        if path not in map(figures_file, _kept()):
            path.unlink()
    size = sum(path.stat().st_size for path in (record_folder() / FIGURES).rglob("*.json.xz"))
    if size > MOST_BYTES:
        raise UsageError(f"the recorded figures take {size:,} bytes, more than {MOST_BYTES:,}; draw fewer marks")
    return drawn


def out_of_date() -> list[str]:
    """Claims whose rows or drawing code have changed since their recorded figures were drawn."""
    return [id for id in _kept() if (stored := _read(id)) is None or not _is_current(experiments()[id], stored)]


def _kept() -> list[str]:
    """Claims whose rows are on record."""
    return sorted({id for id, _ in recorded_runs() if rows_file(id).is_file()})


def figures_file(id: str) -> Path:
    """The file of the recorded figures of a claim."""
    return record_folder() / FIGURES / f"{id}.json.xz"


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


def _restored(fields: dict[str, Any]) -> dict[str, Any]:
    found = {name: fields[name] for name in STORED}
    found["figure"] = None if found["figure"] is None else _panels(found["figure"])
    found["numbers"] = Numbers(**found["numbers"])
    found["failed"] = [FailedRow(**row) for row in found["failed"]]
    return found


def _panels(fields: dict[str, Any]) -> Panels:
    return Panels(list(fields["svgs"]), [(float(x), float(y)) for x, y in fields["sizes"]], int(fields["columns"]))


def _read(id: str) -> dict[str, Any] | None:
    try:
        stored = json.loads(lzma.decompress(figures_file(id).read_bytes()))
    except (OSError, ValueError, lzma.LZMAError):
        return None
    return stored if isinstance(stored, dict) and isinstance(stored.get("runs"), dict) else None


def _write(id: str, content: dict[str, Any]) -> None:
    path = figures_file(id)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as place:
        place.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))


def _is_current(claim: Experiment[Any], stored: dict[str, Any]) -> bool:
    return _checksums(claim).items() <= stored.items()


def _checksums(claim: Experiment[Any]) -> dict[str, str]:
    """Checksums of the rows, and of the source of the method that draws them, which is the same for every Python."""
    drawing = inspect.getsource(type(claim).draw)
    return {
        "rows": sha256(rows_file(claim.id).read_bytes()).hexdigest(),
        "drawing": sha256(drawing.encode()).hexdigest(),
    }


def _source(kind: type) -> str:
    """The source of a claim, or its name if it has no file."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else kind.__qualname__
    except OSError:
        return kind.__qualname__


if __name__ == "__main__":
    for id in renew():
        print(f"drawn: {id}")
