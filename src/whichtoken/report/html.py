"""The HTML report: static pages from the ledger alone, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from whichtoken import __version__
from whichtoken.errors import UsageError
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.results import Result, stored_results
from whichtoken.lab.verdicts import Verdict
from whichtoken.places import DEFAULT_FOLDER, LEDGER_NAME
from whichtoken.report.figures import svg

MOST_NUMBERS = 60  # longer tables belong into `whichtoken export`


def write_report(out: Path) -> Path:
    """Write the report of the ledger in a folder to `report/` in it, and return its first page."""
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        results = stored_results(ledger)
    if not results:
        raise UsageError(f"{out / LEDGER_NAME} has no run of a known experiment; run 'whichtoken reproduce' first")
    by_experiment: dict[str, list[Result]] = {}
    for result in results:
        by_experiment.setdefault(result.id, []).append(result)
    folder = out / "report"
    pages = _environment()
    shown = [_headline(runs) for _, runs in sorted(by_experiment.items())]
    try:
        folder.mkdir(exist_ok=True)
        for result in shown:
            page = pages.get_template("experiment.html").render(
                runs=list(_runs(by_experiment[result.id], out)), first=result
            )
            (folder / page_name(result.id)).write_text(page, encoding="utf-8")
        index = folder / "index.html"
        page = pages.get_template("index.html").render(theories=_by_theory(shown), counts=_counts(shown))
        index.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder} ({error.strerror})") from error
    return index


def page_name(experiment_id: str) -> str:
    """File of an experiment's page."""
    return experiment_id.replace("/", "-") + ".html"


@dataclass(frozen=True)
class RunView:
    """One run as its section of the page shows it."""

    result: Result
    figure: Markup
    fault: str  # why there is no figure
    columns: list[str]
    numbers: list[list[str]]
    command: str


def _runs(results: list[Result], out: Path) -> Iterator[RunView]:
    for number, result in enumerate(sorted(results, key=lambda result: not result.plan.as_declared)):
        figure, fault = _figure(result, f"{result.id} {number}")
        columns, numbers = _numbers(result)
        yield RunView(result, figure, fault, columns, numbers, _command(result, out))


def _figure(result: Result, name: str) -> tuple[Markup, str]:
    """The experiment's picture; a partial run may lack what it shows, which must not cost the page."""
    if not result.rows:
        return Markup(), "no finished rows to draw"
    try:
        return Markup(svg(lambda figure: result.experiment.draw(result.rows, figure), name)), ""
    except Exception as error:
        partial = result.missing or result.failed
        why = "needs rows that are not there" if partial else "could not be drawn"
        return Markup(), f"the figure {why} ({type(error).__name__}: {error})"


def _numbers(result: Result) -> tuple[list[str], list[list[str]]]:
    """One line per point: the fields that vary, then mean and standard error of each measured number, then theory."""
    fields = [name for name in vars(next(iter(result.plan.points.values()))) if len(_levels(result, name)) > 1]
    measured = list(
        dict.fromkeys(name for row in result.rows for name, value in row.measured.items() if _is_number(value))
    )
    predicted = list(
        dict.fromkeys(n for row in result.rows for n, item in row.predicted.items() if _is_number(item.value))
    )
    lines = []
    for point in result.plan.points.values():
        rows = [row for row in result.rows if row.point == point]
        line = [str(getattr(point, name)) for name in fields] + [str(len(rows))]
        line += [
            _mean_and_error([value for row in rows if _is_number(value := row.measured.get(name))]) for name in measured
        ]
        line += [
            f"{rows[0].predicted[name].value:.4g}" if rows and name in rows[0].predicted else "" for name in predicted
        ]
        lines.append(line)
    return [*fields, "rows", *measured, *(f"theory: {name}" for name in predicted)], lines


def _levels(result: Result, name: str) -> set[Any]:
    return {getattr(point, name) for point in result.plan.points.values()}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return ""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4g}"
    return f"{mean:.4g} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1g}"


def _command(result: Result, out: Path) -> str:
    parts = ["whichtoken", "reproduce", result.id, "--preset", result.preset]
    for name, values in result.plan.overrides.items():
        texts = (json.dumps(value) if isinstance(value, tuple) else str(value) for value in values)
        parts += ["--set", f"{name}={','.join(texts)}"]
    if result.plan.seeds is not None:
        parts += ["--seeds", str(result.plan.seeds)]
    if out != DEFAULT_FOLDER:
        parts += ["--out", str(out)]
    return shlex.join(parts)


def _headline(results: list[Result]) -> Result:
    """The run that stands for an experiment: the latest as declared, else the latest."""
    return next((result for result in results if result.plan.as_declared), results[0])


def _by_theory(results: list[Result]) -> dict[str, list[Result]]:
    theories: dict[str, list[Result]] = {}
    for result in results:
        theories.setdefault(result.experiment.theory.replace("-", " "), []).append(result)
    return theories


def _counts(results: list[Result]) -> dict[str, int]:
    counts = Counter(verdict.state for result in results for verdict in result.verdicts)
    return {state: counts[state] for state in ("agrees", "disagrees", "inconclusive", "not-run") if counts[state]}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _maths(text: str) -> Markup:
    """Norms as they are printed: l_1.1 with a script l and its index below."""
    return Markup(re.sub(r"\bl_(\d+(?:\.\d+)?|\w)", r"ℓ<sub>\1</sub>", str(escape(text))))


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


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whichtoken.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["maths"] = _maths
    environment.globals.update(
        page_name=page_name, number=_number, interval_picture=_interval_picture, version=__version__, most=MOST_NUMBERS
    )
    return environment
