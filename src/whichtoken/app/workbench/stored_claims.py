"""What the ledger holds, for pages: read once, and again only when the file has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME
from whichtoken.lab.discovery import experiments
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.record import RunKey, RunSummary, recorded_runs
from whichtoken.lab.verdicts import Verdict

if TYPE_CHECKING:
    from whichtoken.app.pages.experiment_page import RunSection
    from whichtoken.lab.results import Result

Stamp = tuple[tuple[int, int], ...]  # time and size of the ledger and of its log


def address_of(run: RunSummary) -> str:
    """Where a run has its pages."""
    return f"/claims/{run.id}/{sha256(repr(run.key).encode()).hexdigest()[:12]}"


def beside_record(experiment: str, preset: str, verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Verdicts as pages show them, each with the verdict of the same code on record, if there is one."""
    run = recorded_runs().get((experiment, preset))
    recorded = {verdict.code: asdict(verdict) for verdict in run.verdicts} if run else {}
    return [{**asdict(verdict), "recorded": recorded.get(verdict.code)} for verdict in verdicts]


def runs_of(out: Path) -> Mapping[str, list[RunSummary]]:
    """The runs of every known claim: those as declared first, then the latest first; nothing where there is no ledger."""
    return _runs(out / LEDGER_NAME, stamp(out))


def stamp(out: Path) -> Stamp:
    """What changes whenever the ledger does."""
    found = []
    for name in (LEDGER_NAME, f"{LEDGER_NAME}-wal"):
        try:
            status = (out / name).stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


@lru_cache(maxsize=2)
def _runs(path: Path, _: Stamp) -> Mapping[str, list[RunSummary]]:
    if not path.exists():
        return {}
    found: dict[str, list[RunSummary]] = {}
    with Ledger.reading(path) as ledger:
        for run in sorted(ledger.runs(), key=lambda run: not run.as_declared):
            if run.id in experiments():
                found.setdefault(run.id, []).append(run)
    return found


@dataclass(frozen=True)
class DrawnRun:
    """The picture and the numbers of a run, ready for pages."""

    panels: Sequence[str]  # SVG
    no_figure: str  # why there are none
    part: str  # of the claim's page, HTML
    picture: str  # the whole figure as an SVG file; empty where there is none


def draw_run(out: Path, _: Stamp, key: RunKey, address: str) -> DrawnRun:
    """What the report shows of a run: its figure, its numbers; it takes seconds, so a worker does it."""
    from whichtoken.app.pages.experiment_page import view_of

    return _draw_section(view_of(_result(out / LEDGER_NAME, key), 0, out), address)


def draw_recorded(id: str, preset: str, address: str) -> DrawnRun:
    """What the report shows of a run on record; its figure was stored with it."""
    from whichtoken.app.pages.drawn import recorded_views
    from whichtoken.app.pages.experiment_page import view_of_record

    runs = {name: run for (claim, name), run in recorded_runs().items() if claim == id}
    kept = recorded_views(experiments()[id], runs)
    view = (kept.views if kept else {}).get(preset) or view_of_record(runs[preset])
    return _draw_section(replace(view, has_rows=False), address)  # the report of the record writes its rows


def _draw_section(view: RunSection, address: str) -> DrawnRun:
    from whichtoken.app.workbench.pages import template_text

    part = template_text("figure.html", view=view, address=address)
    figure = view.figure
    return DrawnRun(figure.svgs if figure else (), view.no_figure, part, figure.standalone() if figure else "")


def rows_of_run(out: Path, _: Stamp, key: RunKey) -> str:
    """The rows of a run as CSV, finished and failed; there may be a million, so a worker does it."""
    from whichtoken.lab.export import rows_as_csv

    return rows_as_csv(_result(out / LEDGER_NAME, key).all_rows)


def _result(path: Path, key: RunKey) -> Result:
    from whichtoken.lab.results import stored_results

    with Ledger.reading(path) as ledger:
        results = stored_results(ledger, [run for run in ledger.runs() if run.key == key])
    if not results:
        raise UsageError("this run is of an earlier version of the claim; run it again to see it")
    return results[0]
