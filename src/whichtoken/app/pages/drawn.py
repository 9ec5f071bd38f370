"""Stored figures: those of a report are stored beside it, those of the record are part of the package.

`record/figures/<theory>/<claim>.json.xz` has the figures and tables of the recorded rows of a claim, with checksums of the
rows and of the code that drew them. `tools/draw_record.py` renews those that are out of date.
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
from whichtoken.app.pages.experiment_page import FailedRow, Numbers, RunSection, draw_figure, view_of_record
from whichtoken.display.panels import Panels
from whichtoken.files import write_text
from whichtoken.lab.experiment import Experiment, Rows
from whichtoken.lab.export import rows_as_csv
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import RunSummary, record_folder, recorded_ledger, rows_file
from whichtoken.lab.results import Result

FIGURES = "figures"
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
    stored = read_figures(claim.id)
    if stored is None or (rows_file(claim.id).is_file() and not is_current(claim, stored)):
        return None
    try:
        known = {preset: fields for preset, fields in stored["runs"].items() if preset in runs}
        views = {
            preset: replace(view_of_record(replace(runs[preset], missing=fields["missing"])), **_restore_fields(fields))
            for preset, fields in known.items()
        }
        repeats = {preset: fields["repeats"] for preset, fields in known.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    there = rows_file(claim.id).is_file()
    return RecordedViews({preset: replace(view, has_rows=there) for preset, view in views.items()}, repeats)


def figures_file(id: str) -> Path:
    """The file of the recorded figures of a claim."""
    return record_folder() / FIGURES / f"{id}.json.xz"


def _restore_fields(fields: dict[str, Any]) -> dict[str, Any]:
    found = {name: fields[name] for name in STORED}
    found["figure"] = None if found["figure"] is None else _panels(found["figure"])
    found["numbers"] = Numbers(**found["numbers"])
    found["failed"] = [FailedRow(**row) for row in found["failed"]]
    return found


def _panels(fields: dict[str, Any]) -> Panels:
    return Panels(list(fields["svgs"]), [(float(x), float(y)) for x, y in fields["sizes"]], int(fields["columns"]))


def read_figures(id: str) -> dict[str, Any] | None:
    """The recorded figures of a claim; None if there are none, or the file is damaged."""
    try:
        stored = json.loads(lzma.decompress(figures_file(id).read_bytes()))
    except (OSError, ValueError, lzma.LZMAError):
        return None
    return stored if isinstance(stored, dict) and isinstance(stored.get("runs"), dict) else None


def is_current(claim: Experiment[Any], stored: dict[str, Any]) -> bool:
    """Whether figures are of the recorded rows and of the code that draws them."""
    return checksums(claim).items() <= stored.items()


def checksums(claim: Experiment[Any]) -> dict[str, str]:
    """Checksums of the rows, and of the source of the method that draws them, which is the same for every Python."""
    parts = {"rows": rows_file(claim.id).read_bytes(), "drawing": inspect.getsource(type(claim).draw).encode()}
    return {name: sha256(part).hexdigest() for name, part in parts.items()}


def _source(kind: type) -> str:
    """The source of a claim, or its name if it has no file."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else kind.__qualname__
    except OSError:
        return kind.__qualname__
