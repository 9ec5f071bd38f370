"""The HTML report: static pages from the ledger or from the record, nothing computed again, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError, in_one_line
from whichtoken.files import cannot_write, check_place, write_text
from whichtoken.lab.discovery import Fault, experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.export import rows_as_csv
from whichtoken.lab.ledger import Ledger, Run
from whichtoken.lab.record import RecordedRun, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import Result, stored_results
from whichtoken.places import DEFAULT_FOLDER, LEDGER_NAME
from whichtoken.report.experiment_page import RunView, experiment_page, view_of, view_of_record
from whichtoken.report.overview import disagreements_page, overview_page, reading_page
from whichtoken.report.studies import Study, page_name, place_of
from whichtoken.report.theories import THEORIES

PARTS = ("figures", "rows")  # folders beside the pages
LOCAL = "Made from the results in this folder. Quick runs leave some claims undecided; full ones decide most of them."
RECORD = "Made from the record of this version of whichtoken; a claim at other sizes is on its own page."


def write_report(out: Path, record: bool = False) -> Path:
    """Write the report of the ledger in a folder to `report/` in it, and return its first page.

    Parameters
    ----------
    out : Path
        Folder of the ledger, as given to `reproduce`.
    record : bool, default=False
        Show what is on record instead, in `record/`; no ledger is needed.

    Returns
    -------
    Path
        The first page.

    Examples
    --------
    >>> from pathlib import Path
    >>> from whichtoken.report import write_report
    >>> write_report(Path("whichtoken-output"))  # doctest: +SKIP
    """
    return write_pages(out, record).index


@dataclass(frozen=True)
class Written:
    """A report: its first page, and the runs that it speaks of."""

    index: Path
    studies: list[Study]


def write_pages(out: Path, record: bool = False) -> Written:
    """As `write_report`, and return also what the report speaks of."""
    if record:
        return _Writer(out / "record", RECORD).write(_recorded())
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        runs = _runs_by_experiment(ledger)
        if not runs and not faults():
            raise UsageError(f"{out / LEDGER_NAME} has no run of a known experiment; run 'whichtoken reproduce' first")
        return _Writer(out / "report", LOCAL, out).write(
            (experiments()[id], stored_one_by_one(ledger, asked)) for id, asked in runs.items()
        )


def stored_one_by_one(ledger: Ledger, runs: Iterable[Run]) -> Iterator[Result]:
    """Results of the runs, of which only one is held in memory at a time."""
    for run in runs:
        yield from stored_results(ledger, [run])


class _Writer:
    """Writes pages as the runs come by, and keeps of each run only what the pages about all of them need."""

    def __init__(self, folder: Path, source: str, out: Path = DEFAULT_FOLDER) -> None:
        self.folder, self.source, self.out = folder, source, out
        self.studies: list[Study] = []
        self.panels: dict[tuple[str, int], str] = {}
        self.wrong = list(faults())

    def write(self, claims: Iterable[tuple[Experiment[Any], Iterator[Result | RecordedRun]]]) -> Written:
        _check_folders(self.folder)
        for experiment, runs in claims:
            try:
                text = experiment_page(experiment, self._views(runs))
            except (KeyboardInterrupt, UsageError):
                raise
            except BaseException as error:  # whatever a claim's file does, the other pages are written
                self.wrong.append(Fault(experiment.id, f"its page cannot be created: {in_one_line(error)}"))
                continue
            write_text(self.folder / page_name(experiment.id), text)
        write_text(self.folder / "disagreements.html", disagreements_page(self.studies))
        write_text(self.folder / "reading.html", reading_page())
        index = self.folder / "index.html"
        write_text(index, overview_page(self.studies, self.panels, self.wrong, source=self.source))
        return Written(index, self.studies)

    def _views(self, runs: Iterator[Result | RecordedRun]) -> Iterator[RunView]:
        for number, run in enumerate(runs):
            if isinstance(run, RecordedRun):
                view = view_of_record(Study.recorded(run))
            else:
                view = view_of(run, number, self.out)
                self._write_parts(view, run)
            if view.study.as_declared or not number:
                self.studies.append(view.study)
            yield view

    def _write_parts(self, view: RunView, result: Result) -> None:
        write_text(self.folder / "rows" / f"{view.name}.csv", rows_as_csv(result.all_rows))
        if view.figure is None:
            return
        write_text(self.folder / "figures" / f"{view.name}.svg", view.figure.standalone())
        for theory in THEORIES:
            id, panel = theory.figure
            if id == result.id and panel < len(view.figure.svgs):
                self.panels.setdefault(theory.figure, view.figure.svgs[panel])


def _recorded() -> Iterator[tuple[Experiment[Any], Iterator[Result | RecordedRun]]]:
    """What is on record of each claim, the most telling size first."""
    for id, experiment in experiments().items():
        kept = {preset: run for (name, preset), run in recorded_runs().items() if name == id}
        if kept:
            yield experiment, _runs_on_record(id, kept)


def _runs_on_record(id: str, kept: dict[str, RecordedRun]) -> Iterator[Result | RecordedRun]:
    with_rows: dict[str, Result] = {}
    if rows_file(id).is_file():
        with recorded_ledger(id) as ledger:
            with_rows = {result.preset: result for result in stored_results(ledger) if result.plan.as_declared}
    for preset in sorted(kept, key=place_of):
        yield with_rows.get(preset, kept[preset])


def _runs_by_experiment(ledger: Ledger) -> dict[str, list[Run]]:
    """Runs of the experiments that this program knows: those as declared first, the most telling size first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(ledger.runs(), key=_order):
        if run.experiment in experiments():
            found.setdefault(run.experiment, []).append(run)
    return dict(sorted(found.items()))


def _order(run: Run) -> tuple[bool, int]:
    return bool(run.overrides or run.seeds), place_of(run.preset)


def _check_folders(folder: Path) -> None:
    """Make the folders, and find out before the work whether pages can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            (folder / part).mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    check_place(folder / "index.html")
