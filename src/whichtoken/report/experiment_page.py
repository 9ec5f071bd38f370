"""The page of one claim: its figure first, then what was found in sentences, then everything else, folded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from whichtoken.display.panels import Panels, panels
from whichtoken.errors import in_one_line
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.results import Result
from whichtoken.lab.verdicts import Verdict
from whichtoken.places import DEFAULT_FOLDER
from whichtoken.report.frame import LARGEST_PAGE, framed, render
from whichtoken.report.numbers import Numbers, fixed_fields, numbers_of, varied_fields
from whichtoken.report.sentences import counts, sentence
from whichtoken.report.studies import Checked, Highlight, Study, anchor, highlights

MOST_HIGHLIGHTS = 6
MOST_FAILED = 20


@dataclass(frozen=True)
class FailedRow:
    """A row that failed, as a page tells it."""

    message: str
    point: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class RunView:
    """One run as its section of the page shows it, already without its rows."""

    study: Study
    heading: str
    figure: Panels | None
    no_figure: str  # why there is none
    highlights: Sequence[Highlight]
    recorded: Mapping[str, str]  # states on record where they differ
    numbers: Numbers
    fixed: Mapping[str, Any]
    varied: Mapping[str, str]
    failed: Sequence[FailedRow]
    versions: Sequence[str]
    command: str
    export: str
    name: str  # of the files beside the page
    has_rows: bool = True  # whether the file of rows is one of them

    @property
    def panels(self) -> Markup:
        return Markup("\n".join(self.figure.svgs)) if self.figure else Markup()


def view_of(
    result: Result,
    number: int = 0,
    out: Path = DEFAULT_FOLDER,
    drawn: tuple[Panels | None, str] | None = None,
) -> RunView:
    """What a page shows of a run.

    Parameters
    ----------
    number : tells runs of one claim apart.
    out : folder of its ledger.
    drawn : its figure and why there is none, if that has been found before.
    """
    figure, fault = drawn or draw_figure(result, number)
    return RunView(
        study=Study.of(result),
        heading=_heading(result),
        figure=figure,
        no_figure=fault,
        highlights=highlights(result.verdicts, MOST_HIGHLIGHTS),
        recorded={v.code: was for v in result.verdicts if (was := result.expected(v)) and was != v.state},
        numbers=numbers_of(result),
        fixed=fixed_fields(result),
        varied=varied_fields(result),
        failed=[
            FailedRow(row.message, {name: str(value) for name, value in vars(row.point).items()}, row.seed)
            for row in result.rows.failed[:MOST_FAILED]
        ],
        versions=result.package_versions,
        command=_command(result, out),
        export=shlex.join(["whichtoken", "export", result.id, "--to", "rows.csv", *_out_option(out)]),
        name=file_name(result, number),
    )


def view_of_record(study: Study) -> RunView:
    """A run as far as its verdicts on record tell it."""
    command = shlex.join(["whichtoken", "reproduce", study.id, "--preset", study.preset])
    return RunView(
        study, study.preset, None, "The record keeps the verdicts of this run, not its rows, so there is no figure.",
        highlights(study.verdicts, MOST_HIGHLIGHTS), {}, Numbers([], [], ""), {}, {}, [], [], command,
        shlex.join(["whichtoken", "export", study.id, "--to", "rows.csv"]),
        f"{study.id.replace('/', '-')}-{study.preset}", has_rows=False,
    )  # fmt: skip


def run_section(view: RunView, first: bool = True, anchors: bool = True) -> str:
    """A run as part of its page (HTML); `anchors` for the run of its preset that links lead to."""
    return render(
        "run.html", run=view, study=view.study, first=first, anchors=anchors, sentence=sentence, anchor=anchor,
        interval_picture=interval_picture, counts=counts(view.study.verdicts),
    )  # fmt: skip


def experiment_page(experiment: Experiment[Any], views: Iterable[RunView], checked: Checked | None = None) -> str:
    """The page of a claim from its runs, the leading one first; runs that would make it heavy are listed."""
    sections: list[str] = []
    left_out: list[RunView] = []
    room, seen = LARGEST_PAGE * 4 // 5, set[str]()
    for view in views:
        section = run_section(view, first=not sections, anchors=view.study.preset not in seen)
        if sections and len(section.encode()) > room:
            left_out.append(view)
            continue
        seen.add(view.study.preset)
        sections.append(section)
        room -= len(section.encode())
    others = [(counts(view.study.verdicts), view.command) for view in left_out]
    body = render(
        "experiment.html", experiment=experiment, sections=Markup("\n".join(sections)), left_out=others, checked=checked
    )  # fmt: skip
    return framed(experiment.title, body, scripts=["details.js", "figure.js"])


def interval_picture(verdict: Verdict) -> Markup:
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
        '<svg class="interval" viewBox="0 0 120 20" aria-hidden="true">'
        f'<line x1="{place(verdict.theory)}" x2="{place(verdict.theory)}" y1="2" y2="18" class="theory"/>'
        f'<line x1="{place(low)}" x2="{place(high)}" y1="10" y2="10" class="reach"/>'
        f'<circle cx="{place(verdict.measured)}" cy="10" r="3.2"/></svg>'
    )


def draw_figure(result: Result, number: int) -> tuple[Panels | None, str]:
    """The experiment's picture; a partial run may lack what it shows, which must not cost the page."""
    if not result.rows:
        return None, "There are no finished rows to draw."
    name = f"{result.id} {number}"
    try:
        return panels(lambda figure: result.experiment.draw(result.rows, figure), name, result.experiment.title), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a claim's file does, the other pages are written
        partial = result.missing or result.failed
        why = "needs rows that are missing" if partial else "could not be drawn"
        return None, f"The figure {why} ({in_one_line(error)})."


def _heading(result: Result) -> str:
    changes = ", ".join(f"{name}={','.join(map(str, v))}" for name, v in result.plan.overrides.items())
    seeds = f" ({result.plan.seeds} seeds)" if result.plan.seeds else ""
    return f"{result.preset}{f' with {changes}' if changes else ''}{seeds}"


def file_name(result: Result, number: int) -> str:
    """Name of the files of a run beside its page."""
    kind = result.preset if result.plan.as_declared else str(number)
    return f"{result.id.replace('/', '-')}-{kind}"


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
