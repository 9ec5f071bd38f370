"""The HTML report: static pages from the ledger alone, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from whichtoken import __version__
from whichtoken.display.figures import svg
from whichtoken.display.html import page
from whichtoken.display.text import visible
from whichtoken.errors import UsageError, in_one_line
from whichtoken.files import cannot_write, check_place, write_text
from whichtoken.lab.discovery import Fault, experiments, faults
from whichtoken.lab.experiment import Experiment, Rows
from whichtoken.lab.ledger import Ledger, Run
from whichtoken.lab.results import Result, stored_results
from whichtoken.lab.verdicts import Verdict
from whichtoken.places import DEFAULT_FOLDER, LEDGER_NAME
from whichtoken.report.numbers import Numbers, fixed_fields, numbers_of

MOST_LINES = 60  # of a table: longer ones belong into `whichtoken export`
MOST_FAILED = 20
MOST_CHARACTERS = 300  # of a text from data
LARGEST_PAGE = 380_000  # bytes, so that it opens at once anywhere
STATES = ("agrees", "disagrees", "inconclusive", "not-run")


def write_report(out: Path) -> Path:
    """Write the report of the ledger in a folder to `report/` in it, and return its first page.

    Parameters
    ----------
    out : Path
        Folder of the ledger, as given to `reproduce`.

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
    templates, headlines, wrong = _environment(), [], faults()
    folder, index = out / "report", out / "report" / "index.html"
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        runs = _runs_by_experiment(ledger)
        if not runs and not wrong:
            raise UsageError(f"{out / LEDGER_NAME} has no run of a known experiment; run 'whichtoken reproduce' first")
        _check_folder(folder)
        for id, asked in runs.items():
            try:
                headline, text = _experiment_page(templates, experiments()[id], stored_one_by_one(ledger, asked), out)
            except (KeyboardInterrupt, UsageError):
                raise
            except BaseException as error:  # whatever a claim's file does, the other pages are written
                wrong = [*wrong, Fault(id, f"its page cannot be created: {in_one_line(error)}")]
                continue
            write_text(folder / page_name(id), text)
            headlines += [headline] if headline else []
    write_text(index, _index_page(templates, headlines, wrong))
    return index


def page_name(experiment_id: str) -> str:
    """File of an experiment's page."""
    return experiment_id.replace("/", "-") + ".html"


def stored_one_by_one(ledger: Ledger, runs: Iterable[Run]) -> Iterator[Result]:
    """Results of the runs, of which only one is held in memory at a time."""
    for run in runs:
        yield from stored_results(ledger, [run])


@dataclass(frozen=True)
class Headline:
    """The run that stands for an experiment on the first page, without its rows."""

    result: Result
    finished: int
    failed: int

    @classmethod
    def of(cls, result: Result) -> Headline:
        return cls(replace(result, rows=Rows()), len(result.rows), result.failed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)


@dataclass(frozen=True)
class RunView:
    """One run as its section of the page shows it."""

    result: Result
    figure: Markup
    fault: str  # why there is no figure
    numbers: Numbers
    fixed: Mapping[str, Any]
    command: str
    export: str


@dataclass(frozen=True)
class LeftOut:
    """One run for which the page has no room: what it came to, and how to see it."""

    counts: Mapping[str, int]
    command: str


def _experiment_page(
    templates: Environment, experiment: Experiment[Any], results: Iterator[Result], out: Path
) -> tuple[Headline | None, str]:
    """The page of an experiment, and the run that stands for it: the latest as declared, else the latest."""
    headline: Headline | None = None
    sections, left_out, room = [], [], LARGEST_PAGE * 4 // 5
    for number, result in enumerate(results):
        headline = headline or Headline.of(result)
        section = ""
        if room > 0:
            view = _view(result, f"{result.id} {number}", out)
            section = templates.get_template("run.html").render(run=view)
        if section and (number == 0 or len(section.encode()) < room):
            sections.append(section)
            room -= len(section.encode())
        else:
            left_out.append(LeftOut(_counts([result]), _command(result, out)))
    body = templates.get_template("experiment.html").render(
        experiment=experiment, sections=Markup("\n".join(sections)), left_out=left_out
    )
    return headline, page(f"{experiment.title} · whichtoken", body, _style(templates))


def _index_page(templates: Environment, headlines: list[Headline], wrong: list[Fault]) -> str:
    """The first page; with very many verdicts it shows fewer of each experiment, and says so."""
    for most in (MOST_LINES, 20, 5, 1):
        body = templates.get_template("index.html").render(
            theories=_by_theory(headlines), counts=_counts(headlines), faults=wrong, most=most
        )
        if len(body.encode()) < LARGEST_PAGE:
            break
    return page("whichtoken: verdicts", body, _style(templates))


def _runs_by_experiment(ledger: Ledger) -> dict[str, list[Run]]:
    """Runs of the experiments that this program knows: those as declared first, then the latest first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(ledger.runs(), key=lambda run: bool(run.overrides or run.seeds)):
        if run.experiment in experiments():
            found.setdefault(run.experiment, []).append(run)
    return dict(sorted(found.items()))


def _check_folder(folder: Path) -> None:
    """Make the folder, and find out before the work whether pages can be written there."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    check_place(folder / "index.html")


def _view(result: Result, name: str, out: Path) -> RunView:
    figure, fault = _figure(result, name)
    return RunView(
        result, figure, fault, numbers_of(result), fixed_fields(result), _command(result, out),
        shlex.join(["whichtoken", "export", result.id, "--to", "rows.csv", *_out_option(out)]),
    )  # fmt: skip


def _figure(result: Result, name: str) -> tuple[Markup, str]:
    """The experiment's picture; a partial run may lack what it shows, which must not cost the page."""
    if not result.rows:
        return Markup(), "no finished rows to draw"
    try:
        return Markup(svg(lambda figure: result.experiment.draw(result.rows, figure), name)), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a claim's file does, the other pages are written
        partial = result.missing or result.failed
        why = "needs rows that are missing" if partial else "could not be drawn"
        return Markup(), f"the figure {why} ({in_one_line(error)})"


def _command(result: Result, out: Path) -> str:
    parts = ["whichtoken", "reproduce", result.id, "--preset", result.preset]
    for name, values in result.plan.overrides.items():
        texts = (json.dumps(value) if isinstance(value, tuple) else str(value) for value in values)
        parts += ["--set", f"{name}={','.join(texts)}"]
    if result.plan.seeds is not None:
        parts += ["--seeds", str(result.plan.seeds)]
    return shlex.join([*parts, *_out_option(out)])


def _out_option(out: Path) -> list[str]:
    return [] if out == DEFAULT_FOLDER else ["--out", str(out)]


def _by_theory(headlines: Iterable[Headline]) -> dict[str, list[Headline]]:
    theories: dict[str, list[Headline]] = {}
    for headline in headlines:
        theories.setdefault(headline.result.experiment.theory.replace("-", " "), []).append(headline)
    return theories


def _counts(results: Iterable[Result | Headline]) -> dict[str, int]:
    counts = Counter(verdict.state for result in results for verdict in result.verdicts)
    return {state: counts[state] for state in STATES if counts[state]}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cut(value: object, most: int = MOST_CHARACTERS) -> str:
    """A text from data, shortened where it would fill the page."""
    text = str(value)
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} … ({rest} more characters)"


def _maths(text: str) -> Markup:
    """Norms as they are printed: l_1.1 with a script l and its index below."""
    return Markup(re.sub(r"\bl_(\d+(?:\.\d+)?|\w)", r"ℓ<sub>\1</sub>", str(escape(visible(text)))))


def _interval_picture(verdict: Verdict) -> Markup:
    """Theory as a line, the measurement as a dot with its interval: the verdict at a glance."""
    if verdict.theory is None or verdict.measured is None:
        return Markup()
    low, high = (verdict.measured if end is None else end for end in (verdict.low, verdict.high))
    least, most = min(low, verdict.theory), max(high, verdict.theory)
    span = (most - least) or abs(most) or 1.0
    left, right = least - 0.2 * span, most + 0.2 * span

    def place(value: float) -> str:
        return f"{4 + 112 * (value - left) / (right - left):.1f}"

    return Markup(
        '<svg class="interval" viewBox="0 0 120 20" role="img" aria-label="interval and theory">'
        f'<line x1="{place(verdict.theory)}" x2="{place(verdict.theory)}" y1="2" y2="18" class="theory"/>'
        f'<line x1="{place(low)}" x2="{place(high)}" y1="10" y2="10" class="reach"/>'
        f'<circle cx="{place(verdict.measured)}" cy="10" r="3.2"/></svg>'
    )


def _style(templates: Environment) -> str:
    return templates.get_template("style.css").render()


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whichtoken.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["maths"] = _maths
    environment.globals.update(
        page_name=page_name, number=_number, cut=_cut, interval_picture=_interval_picture, version=__version__,
        most=MOST_LINES, most_failed=MOST_FAILED,
    )  # fmt: skip
    return environment
