"""The HTML report: static pages from the ledger or from the record, without new computations or external files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whichtoken.app.pages.drawn import figure_beside, recorded_views
from whichtoken.app.pages.experiment_page import RunSection, experiment_page, file_name, view_of, view_of_record
from whichtoken.app.pages.papers import failures_page, overview_page, paper_file, paper_page, reading_page
from whichtoken.app.pages.sentences import Checked, page_name, place_of
from whichtoken.errors import UsageError, in_one_line
from whichtoken.files import DEFAULT_FOLDER, LEDGER_NAME, check_place, write_text, writing
from whichtoken.lab.discovery import Fault, experiments, faults
from whichtoken.lab.export import rows_as_csv
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.record import RunSummary, recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import Result, stored_results
from whichtoken.lab.statements import judge_papers, sources

LOCAL = "Made from the results in this folder. Quick runs leave some claims undecided; full runs decide most of them."
RECORD = "Made from the record of this version of whichtoken; the page of each claim has its other sizes."


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
    >>> from whichtoken.app import write_report
    >>> write_report(Path("whichtoken-output"))  # doctest: +SKIP
    """
    return write_pages(out, record).index


@dataclass(frozen=True)
class Written:
    """A report: its first page, and its runs."""

    index: Path
    studies: list[RunSummary]


def write_pages(out: Path, record: bool = False, checked: bool = False) -> Written:
    """Like `write_report`, but return the runs of the report as well.

    Parameters
    ----------
    out : folder of the ledger.
    record : show what is on record instead.
    checked : mark the claims of the record that the ledger in `out` has, too.
    """
    if record:
        known = {id for id, _ in recorded_runs()}
        checks = _states_of_folder(out) if checked else {}
        claims = {id: None for id in experiments() if id in known}
        return _Report(out / "record", DEFAULT_FOLDER, RECORD, checks).write(claims)
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        runs = _runs_by_experiment(ledger)
    if not runs and not faults():
        raise UsageError(f"{out / LEDGER_NAME} has no run of a known experiment; run 'whichtoken reproduce' first")
    return _Report(out / "report", out, LOCAL, {}).write(runs)


def _states_of_folder(out: Path) -> dict[str, Checked]:
    """The latest complete run of each claim in this folder."""
    found: dict[str, Checked] = {}
    if (out / LEDGER_NAME).is_file():
        with Ledger.reading(out / LEDGER_NAME) as ledger:
            for run in ledger.runs():
                if run.id in experiments() and run.id not in found and (here := Checked.of(run)):
                    found[run.id] = here
    return found


class _Report:
    """Writes one page after another, and keeps of each run only what the pages about all claims need.

    Parameters
    ----------
    folder : of the pages.
    out : of the ledger, as commands name it.
    source : where the results come from, in words.
    checked : verdicts of runs on this machine, by claim, if the report is of another machine.
    """

    def __init__(self, folder: Path, out: Path, source: str, checked: Mapping[str, Checked]) -> None:
        self.folder, self.out, self.source, self.checked = folder, out, source, checked
        self.studies: list[RunSummary] = []
        self.panels: dict[tuple[str, int], str] = {}
        self.wrong = list(faults())

    def write(self, claims: Mapping[str, Sequence[RunSummary] | None]) -> Written:
        """Write all pages: of each claim with its runs, or, for None, with those on record."""
        # find out before the work whether pages can be written
        with writing(self.folder):
            for folder in (self.folder, self.folder / "figures", self.folder / "rows"):
                folder.mkdir(parents=True, exist_ok=True)
        check_place(self.folder / "index.html")
        for id, runs in claims.items():
            # an error in the file of a claim must not prevent the other pages
            try:
                views = self._views_of_record(id) if runs is None else self._views(runs)
                self._remember(id, views)
                text = experiment_page(experiments()[id], views, self.checked.get(id))
            except (KeyboardInterrupt, UsageError):
                raise
            except BaseException as error:
                self.wrong.append(Fault(id, f"its page cannot be created: {in_one_line(error)}"))
            else:
                write_text(self.folder / page_name(id), text)
        for paper in judge_papers(self.studies):
            write_text(self.folder / paper_file(paper), paper_page(paper))
        write_text(self.folder / "failures.html", failures_page(self.studies))
        write_text(self.folder / "reading.html", reading_page())
        index = self.folder / "index.html"
        write_text(index, overview_page(self.studies, self.panels, self.wrong, self.source, self.checked))
        return Written(index, self.studies)

    def _views(self, runs: Sequence[RunSummary]) -> list[RunSection]:
        """The views of a claim's page, the leading run first; the files beside the page are written."""
        with Ledger.reading(self.out / LEDGER_NAME) as ledger:
            # one result in memory at a time
            results = (result for run in runs for result in stored_results(ledger, [run]))
            return [self._view(result, number) for number, result in enumerate(results)]

    def _views_of_record(self, id: str) -> list[RunSection]:
        runs = {preset: run for (name, preset), run in recorded_runs().items() if name == id}
        found = {preset: view_of_record(run) for preset, run in runs.items()}
        has_rows = rows_file(id).is_file()
        if (kept := recorded_views(experiments()[id], runs)) is not None:
            found |= kept.views
            for view in kept.views.values():
                self._write_figure(view)
            for view, rows in kept.rows(experiments()[id]) if has_rows else ():
                write_text(self.folder / "rows" / f"{view.name}.csv", rows)
        elif has_rows:
            with recorded_ledger(id) as ledger:
                for result in (result for run in ledger.runs() for result in stored_results(ledger, [run])):
                    if result.plan.as_declared and result.preset in runs:
                        found[result.preset] = self._view(result, place_of(result.preset))
        return [found[preset] for preset in sorted(found, key=place_of)]

    def _view(self, result: Result, number: int) -> RunSection:
        name, rows = file_name(result, number), rows_as_csv(result.all_rows)
        write_text(self.folder / "rows" / f"{name}.csv", rows)
        drawn = figure_beside(result, rows, number, self.folder / "figures" / f"{name}.json")
        view = view_of(result, number, self.out, drawn)
        self._write_figure(view)
        return view

    def _write_figure(self, view: RunSection) -> None:
        if view.figure is not None:
            write_text(self.folder / "figures" / f"{view.name}.svg", view.figure.standalone())

    def _remember(self, id: str, views: Sequence[RunSection]) -> None:
        self.studies += [view.study for number, view in enumerate(views) if view.study.as_declared or not number]
        for source in sources():
            claim, panel = source.figure
            for view in views if claim == id else ():
                if view.figure is not None and panel < len(view.figure.svgs):
                    self.panels.setdefault(source.figure, view.figure.svgs[panel])


def _runs_by_experiment(ledger: Ledger) -> dict[str, list[RunSummary]]:
    """Runs of the experiments that this program knows: those as declared first, the most telling size first."""
    found: dict[str, list[RunSummary]] = {}
    for run in sorted(ledger.runs(), key=lambda run: (not run.as_declared, place_of(run.preset))):
        if run.id in experiments():
            found.setdefault(run.id, []).append(run)
    return dict(sorted(found.items()))
