"""The page of one claim: first its figure, then the findings in sentences, then everything else, folded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from markupsafe import Markup

from whichtoken.app.pages import sentences
from whichtoken.app.pages.frame import LARGEST_PAGE, frame_page, render
from whichtoken.app.pages.sentences import Checked, Highlight, anchor, counts, highlights, sentence
from whichtoken.display.panels import Panels, panels
from whichtoken.errors import in_one_line
from whichtoken.files import DEFAULT_FOLDER
from whichtoken.lab.experiment import Experiment, Row
from whichtoken.lab.record import RunSummary, recorded_borders
from whichtoken.lab.results import Result
from whichtoken.lab.verdicts import Verdict

MOST_POINTS, MOST_COLUMNS = 60, 24  # `whichtoken export` writes longer and wider tables
MOST_HIGHLIGHTS = 6
MOST_FAILED = 20


@dataclass(frozen=True)
class Numbers:
    """A table, and what it leaves out in words."""

    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    hidden: str


def numbers_of(result: Result) -> Numbers:
    """The fields that vary, then mean and standard error of each measured number, then theory."""
    fields = [name for name, levels in _levels(result).items() if len(levels) > 1]
    measured = dict.fromkeys(n for row in result.rows for n, value in row.measured.items() if _is_number(value))
    predicted = dict.fromkeys(n for row in result.rows for n, item in row.predicted.items() if _is_number(item.value))
    # the rows have the points of the plan itself, so that `id` identifies a point
    rows_of: dict[int, list[Row[Any]]] = {}
    for row in result.rows:
        rows_of.setdefault(id(row.point), []).append(row)
    lines = []
    for point in islice(result.plan.points.values(), MOST_POINTS):
        rows = rows_of.get(id(point), [])
        line = [str(getattr(point, name)) for name in fields] + [str(len(rows))]
        for name in measured:
            line.append(_mean_and_error([row.measured[name] for row in rows if _is_number(row.measured.get(name))]))
        for item in (rows[0].predicted.get(name) if rows else None for name in predicted):
            value = None if item is None else item.value
            line.append("" if value is None else f"{value:.4g}" if _is_number(value) else str(value))
        lines.append(line[:MOST_COLUMNS])
    columns = [*fields, "rows", *measured, *(f"theory: {name}" for name in predicted)]
    left_out = (result.points - len(lines), "points"), (len(columns) - MOST_COLUMNS, "columns")
    hidden = " and ".join(f"{number} {what}" for number, what in left_out if number > 0)
    return Numbers(columns[:MOST_COLUMNS], lines, hidden)


def _levels(result: Result) -> dict[str, dict[Any, None]]:
    """The values of each field, in the order of the plan."""
    points = list(result.plan.points.values())
    return {name: dict.fromkeys(getattr(p, name) for p in points) for name in (vars(points[0]) if points else ())}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return ""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1g}"


@dataclass(frozen=True)
class FailedRow:
    """A failed row as a page shows it."""

    message: str
    point: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class RunSection:
    """What the page of a claim shows of one run, already without its rows."""

    study: RunSummary
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
    result: Result, number: int = 0, out: Path = DEFAULT_FOLDER, drawn: tuple[Panels | None, str] | None = None
) -> RunSection:
    """What a page shows of a run.

    Parameters
    ----------
    number : tells runs of one claim apart.
    out : folder of its ledger.
    drawn : its figure and why there is none, if that has been found before.
    """
    (figure, fault), levels = drawn or draw_figure(result, number), _levels(result)
    return RunSection(
        study=result.summary,
        heading=_heading(result),
        figure=figure,
        no_figure=fault,
        highlights=highlights(result.verdicts, MOST_HIGHLIGHTS),
        recorded={v.code: was for v in result.verdicts if (was := result.expected(v)) and was != v.state},
        numbers=numbers_of(result),
        fixed={name: next(iter(values)) for name, values in levels.items() if len(values) == 1},
        varied={name: ", ".join(map(str, values)) for name, values in levels.items() if len(values) > 1},
        failed=[
            FailedRow(row.message, {name: str(value) for name, value in vars(row.point).items()}, row.seed)
            for row in result.rows.failed[:MOST_FAILED]
        ],
        versions=result.package_versions,
        command=_command(result, out),
        export=shlex.join(["whichtoken", "export", result.id, "--to", "rows.csv", *_out_option(out)]),
        name=file_name(result, number),
    )


def view_of_record(study: RunSummary) -> RunSection:
    """A run as far as its verdicts on record tell it."""
    command = shlex.join(["whichtoken", "reproduce", study.id, "--preset", study.preset])
    return RunSection(
        study, study.preset, None, "The record keeps the verdicts of this run, not its rows, so there is no figure.",
        highlights(study.verdicts, MOST_HIGHLIGHTS), {}, Numbers([], [], ""), {}, {}, [], [], command,
        shlex.join(["whichtoken", "export", study.id, "--to", "rows.csv"]),
        f"{study.id.replace('/', '-')}-{study.preset}", has_rows=False,
    )  # fmt: skip


def run_section(view: RunSection, first: bool = True, anchors: bool = True) -> str:
    """A run as part of its page (HTML); `anchors` for the run of its preset that links lead to."""
    return render(
        "run.html", run=view, study=view.study, first=first, anchors=anchors, sentence=sentence, anchor=anchor,
        interval_marks=interval_marks, counts=counts(view.study.verdicts),
        kind_words=sentences.KIND_WORDS, regime_words=sentences.REGIME_WORDS,
    )  # fmt: skip


def experiment_page(experiment: Experiment[Any], views: Iterable[RunSection], checked: Checked | None = None) -> str:
    """The page of a claim from its runs, the leading one first; runs that would make it too large are only listed."""
    sections: list[str] = []
    left_out: list[RunSection] = []
    bytes_left, seen = LARGEST_PAGE * 4 // 5, set[str]()
    for view in views:
        section = run_section(view, first=not sections, anchors=view.study.preset not in seen)
        if sections and len(section.encode()) > bytes_left:
            left_out.append(view)
            continue
        seen.add(view.study.preset)
        sections.append(section)
        bytes_left -= len(section.encode())
    others = [(counts(view.study.verdicts), view.command) for view in left_out]
    body = render(
        "experiment.html", experiment=experiment, sections=Markup("\n".join(sections)), left_out=others, checked=checked,
        borders=recorded_borders().get(experiment.id),
    )  # fmt: skip
    return frame_page(experiment.title, body, scripts=["details.js", "figure.js"])


def interval_marks(verdict: Verdict) -> dict[str, str] | None:
    """Positions of theory, measurement and interval in the picture of a verdict; None without a measurement."""
    if verdict.theory is None or verdict.measured is None:
        return None
    low, high = (verdict.measured if end is None else end for end in (verdict.low, verdict.high))
    least, most = min(low, verdict.theory), max(high, verdict.theory)
    span = (most - least) or abs(most) or 1.0
    left, right = least - 0.2 * span, most + 0.2 * span

    values = {"theory": verdict.theory, "low": low, "high": high, "measured": verdict.measured}
    return {name: f"{4 + 112 * (value - left) / (right - left):.1f}" for name, value in values.items()}


def draw_figure(result: Result, number: int) -> tuple[Panels | None, str]:
    """The figure of the claim, or why there is none; an incomplete run must not prevent the page."""
    if not result.rows:
        return None, "There are no finished rows to draw."
    name = f"{result.id} {number}"
    try:
        return panels(lambda figure: result.experiment.draw(result.rows, figure), name, result.experiment.title), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # an error in the file of a claim must not prevent the other pages
        partial = result.missing or result.failed
        why = "needs rows that are missing" if partial else "could not be drawn"
        return None, f"The figure {why} ({in_one_line(error)})."


def _heading(result: Result) -> str:
    changes = ", ".join(f"{name}={','.join(map(str, v))}" for name, v in result.plan.overrides.items())
    seeds = f" ({result.plan.seeds} seed{'s' * (result.plan.seeds != 1)})" if result.plan.seeds else ""
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
