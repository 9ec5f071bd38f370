"""The claims pages: what holds, read from the ledger, and a form to run a claim with other numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.app.pages.frame import render
from whichtoken.app.pages.papers import paper_body
from whichtoken.app.pages.sentences import ANSWER_CLASS, place_of, state_counts
from whichtoken.app.pages.sentences import counts as counts_of
from whichtoken.app.workbench.job_pages import jobs_of
from whichtoken.app.workbench.jobs import JobRequest
from whichtoken.app.workbench.middleware import DRAWN, LINKED
from whichtoken.app.workbench.pages import NAVIGATION, framed_page, template_text
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.app.workbench.stored_claims import DrawnRun, Stamp, address_of, beside_record, runs_of, stamp
from whichtoken.app.workbench.workers import slow_worker_of, worker_of
from whichtoken.errors import UsageError
from whichtoken.lab.discovery import experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.plan import RunPlan, field_types, make_plan, type_name
from whichtoken.lab.record import RunSummary, recorded_runs
from whichtoken.lab.statements import Paper, count_answers, judge_papers

FORM, STORED = "whichtoken.app.workbench.claims", "whichtoken.app.workbench.stored_claims"  # modules that workers call
MOST_FIELDS = 200
LONGEST_TITLE = 200  # characters of what a run changes, in the title of its job
MOST_DIGITS = 20  # of an integer: longer ones are too large anyway, and Python reads at most 4300


@dataclass(frozen=True)
class Field:
    """One field of a Point as the form shows it."""

    name: str
    kind: str
    default: str
    choices: tuple[str, ...]
    preset_values: Mapping[str, str]  # of each preset, if it sets the field
    doc: str
    is_method: bool

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


@cache
def form_fields(experiment: Experiment[Any]) -> list[Field]:
    """The fields of the experiment's form."""
    types, docs = field_types(experiment), _field_comments(experiment.point_type)
    return [
        Field(
            field.name, type_name(types[field.name]), "" if field.default is MISSING else _as_text(field.default),
            _choices(types[field.name]), _preset_values(experiment, field.name), docs.get(field.name, ""),
            field.name in experiment.method_fields,
        )
        for field in fields(experiment.point_type)
    ]  # fmt: skip


def plan_from_form(experiment: Experiment[Any], form: Mapping[str, str]) -> RunPlan:
    """The run that a filled-in form asks for; empty fields have the values of the preset."""
    preset, seeds = form.get("preset", "quick"), form.get("seeds", "").strip()
    if seeds and not seeds.isdecimal():
        raise UsageError(
            "{seeds} is not a whole number of at least 1; leave it empty to use the preset's", seeds=seeds[:40]
        )
    known = {field.name for field in form_fields(experiment)}
    values = {name: value.strip() for name in known if (value := form.get(f"set.{name}", "")).strip()}
    return make_plan(experiment, preset, values, int(seeds[:MOST_DIGITS]) if seeds else None)


def claim_arguments(id: str, form: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The arguments and the title of the job; called in a worker, since a grid may have a million points."""
    plan = plan_from_form(experiments()[id], form)
    changes = "".join(f", {name}={','.join(map(str, values))}" for name, values in plan.overrides.items())
    changes = changes if len(changes) <= LONGEST_TITLE else changes[:LONGEST_TITLE] + " …"
    seeds = f", {plan.seeds} seeds" if plan.seeds else ""
    arguments = {"id": id, "preset": plan.preset, "set": dict(plan.overrides), "seeds": plan.seeds}
    return arguments, f"{id}: {plan.preset}{changes}{seeds}"


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return tuple(str(choice) for choice in get_args(kind))
    return ("true", "false") if kind is bool else ()


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _preset_values(experiment: Experiment[Any], name: str) -> dict[str, str]:
    values_by_preset = {}
    for preset, grids in experiment.presets.items():
        values = dict.fromkeys(_as_text(value) for grid in grids for value in grid.axes.get(name, []))
        if values:
            values_by_preset[preset] = ", ".join(values)
    return values_by_preset


def _field_comments(point: type) -> dict[str, str]:
    """The comment of each field, on its line or on the lines before it."""
    try:
        lines = [line for kind in reversed(point.__mro__[:-1]) for line in inspect.getsource(kind).splitlines()]
    except (OSError, TypeError):
        return {}
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        code, _, comment = line.partition("#")
        name = re.match(r"\s+(\w+)\s*:", code)
        if name:
            comments[name[1]] = " ".join([*above, comment.strip()]).strip()
        above = [*above, comment.strip()] if not code.strip() and comment else []
    return {name: text for name, text in comments.items() if text}


Stored = Mapping[str, list[RunSummary]]


@dataclass(frozen=True)
class ClaimLine:
    """One claim: the latest of its runs here, and how many verdicts of each state are on record, by preset."""

    claim: Experiment[Any]
    latest: RunSummary | None
    recorded: Mapping[str, Mapping[str, int]]

    @property
    def beside(self) -> Mapping[str, Mapping[str, int]]:
        """What to show of the record: that of the same size where the claim was judged here, otherwise all."""
        if self.latest is None or self.latest.stale:
            return self.recorded
        return {preset: counts for preset, counts in self.recorded.items() if preset == self.latest.preset}


@dataclass(frozen=True)
class TheoryCard:
    """One theory: its paper with the answers, and its claims."""

    id: str
    paper: Paper | None  # None for a theory of the user's own
    lines: list[ClaimLine]
    figure: str  # where its panel is drawn; empty where there are no rows to draw


def theory_cards(stored: Stored) -> list[TheoryCard]:
    """The theories in the order of the report, those of users behind them."""
    lines: dict[str, list[ClaimLine]] = {}
    for claim in experiments().values():
        recorded = {preset: state_counts(states.values()) for preset, states in claim.expected.items()}
        line = ClaimLine(claim, next(iter(stored.get(claim.id, [])), None), recorded)
        lines.setdefault(claim.theory, []).append(line)
    papers = {paper.source.id: paper for paper in judge_papers(_studies(stored))}
    order = [*(id for id in papers if id in lines), *(id for id in lines if id not in papers)]
    return [TheoryCard(id, papers.get(id), lines[id], _panel_address(papers.get(id), stored)) for id in order]


def _panel_address(paper: Paper | None, stored: Stored) -> str:
    if paper is None:
        return ""
    claim, panel = paper.source.figure
    presets = sorted((preset for id, preset in recorded_runs() if id == claim), key=place_of)
    drawn = [address_of(run) for run in stored.get(claim, ()) if not run.stale]
    address = next(iter([*drawn, *(f"/claims/{claim}/{preset}" for preset in presets)]), "")
    return address and f"{address}/panel/{panel}"


def _studies(stored: Stored) -> Iterable[RunSummary]:
    """What was judged in this folder; of a claim that was not, what is on record."""
    judged = {id: [run for run in runs if not run.stale] for id, runs in stored.items()}
    for runs in judged.values():
        yield from runs
    for (id, _), run in recorded_runs().items():
        if id in experiments() and not judged.get(id):
            yield run


def settings_of(request: Request) -> ServerSettings:
    """The settings of this workbench."""
    found: ServerSettings = request.app.state.settings
    return found


def _overview(request: Request) -> Response:
    out = settings_of(request).out
    return HTMLResponse(_overview_text(out, stamp(out)), headers=DRAWN)


@lru_cache(maxsize=2)
def _overview_text(out: Path, _: Stamp) -> str:
    """The overview, made once for each state of the ledger."""
    stored = runs_of(out)
    cards = theory_cards(stored)
    counts = count_answers(each for card in cards if card.paper for each in card.paper.statements)
    return template_text(
        "claims.html", current="/claims", pages=NAVIGATION, cards=cards, faults=faults(), counts=counts, stored=stored,
        counts_of=counts_of, answer_class=ANSWER_CLASS,
    )  # fmt: skip


def _paper(request: Request) -> Response:
    """The page of one paper, with the runs of this folder where there are some."""
    papers = judge_papers(_studies(runs_of(settings_of(request).out)))
    for paper in papers:
        if paper.source.id == request.path_params["theory"]:
            body = paper_body(paper, lambda found: f"/claims/{found.claim}")
            return framed_page(request, "paper.html", drawn=True, title=paper.source.title, body=Markup(body))
    raise HTTPException(404)


def _claim(request: Request) -> Experiment[Any]:
    id = f"{request.path_params['theory']}/{request.path_params['claim']}"
    if id not in experiments():
        raise HTTPException(404)
    return experiments()[id]


def _run(request: Request, claim: Experiment[Any]) -> RunSummary:
    for run in runs_of(settings_of(request).out).get(claim.id, []):
        if address_of(run).rpartition("/")[2] == request.path_params["run"]:
            return run
    raise HTTPException(404)


def _page(request: Request) -> Response:
    claim = _claim(request)
    runs = runs_of(settings_of(request).out).get(claim.id, [])
    mine = [view for view in jobs_of(request).views() if view.is_open and view.request.arguments.get("id") == claim.id]
    return framed_page(
        request, "claim.html", drawn=True, claim=claim, runs=runs, fields=form_fields(claim), jobs=mine,
        given=dict(request.query_params), recorded=_recorded(claim, runs), address_of=address_of,
        beside_record=beside_record,
    )  # fmt: skip


def _recorded(claim: Experiment[Any], runs: list[RunSummary]) -> dict[str, dict[str, Any]]:
    """What is on record at the sizes that were not judged here; where they were, it stands in the tables."""
    judged = {run.preset for run in runs if not run.stale}
    return {
        preset: {"verdicts": [asdict(verdict) for verdict in run.verdicts], "counts": counts_of(run.verdicts)}
        for (id, preset), run in recorded_runs().items()
        if id == claim.id and preset not in judged
    }


async def _draw(request: Request, claim: Experiment[Any]) -> DrawnRun:
    """The figure and the numbers, drawn once for each state of the ledger; where a preset stands for the run, of the record."""
    preset = request.path_params["run"]
    if (claim.id, preset) in recorded_runs():
        recorded = f"{STORED}:draw_recorded", claim.id, preset, f"/claims/{claim.id}/{preset}"
        return cast("DrawnRun", await slow_worker_of(request).answer(request, *recorded, keep=True))
    run, out = await run_in_threadpool(_run, request, claim), settings_of(request).out
    asked = (out, stamp(out), run.key, address_of(run))
    found: DrawnRun = await slow_worker_of(request).answer(request, f"{STORED}:draw_run", *asked, keep=True)
    return found


async def _panel(request: Request) -> Response:
    """One panel of a figure, for the card of its theory."""
    drawn = await _draw(request, _claim(request))
    panels = {str(number): svg for number, svg in enumerate(drawn.panels)}
    sentence = drawn.no_figure or "This panel needs rows that are not there yet."
    missing = Markup('<p class="quiet">{}</p>').format(sentence)
    return HTMLResponse(panels.get(request.path_params["panel"], missing), headers=DRAWN)


async def _figure(request: Request) -> Response:
    """The figure and the numbers, which the page fetches after it has loaded."""
    return HTMLResponse((await _draw(request, _claim(request))).part, headers=DRAWN)


async def _svg(request: Request) -> Response:
    claim = _claim(request)
    drawn = await _draw(request, claim)
    if not drawn.picture:
        raise HTTPException(404)
    return Response(drawn.picture, media_type="image/svg+xml", headers=_download(claim, "svg") | DRAWN)


async def _rows(request: Request) -> Response:
    """The rows of the run as CSV."""
    claim, out = _claim(request), settings_of(request).out
    run = await run_in_threadpool(_run, request, claim)
    text = await slow_worker_of(request).answer(request, f"{STORED}:rows_of_run", out, stamp(out), run.key)
    return Response(text, media_type="text/csv", headers=_download(claim, "csv"))


def _reading(request: Request) -> Response:
    return framed_page(request, "reading.html", body=Markup(render("reading.html")))


def _download(claim: Experiment[Any], suffix: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{claim.id.replace("/", "-")}.{suffix}"'}


async def _start(request: Request) -> Response:
    """Check the form, then start the run as a job."""
    claim = _claim(request)
    async with request.form(max_files=0, max_fields=MOST_FIELDS) as sent:
        form = {name: str(value) for name, value in sent.items()}
    arguments, title = await worker_of(request).answer(request, f"{FORM}:claim_arguments", claim.id, form)
    arguments["out"] = str(settings_of(request).out.absolute())
    asked = JobRequest("claim", title, arguments, page=f"/claims/{claim.id}")
    id = await run_in_threadpool(jobs_of(request).start, asked)
    return RedirectResponse(f"/jobs/{id}", 303)


routes = [
    Route("/claims", _overview, name=LINKED),
    Route("/reading", _reading, name=LINKED),
    Route("/papers/{theory}", _paper, name=LINKED),
    Route("/claims/{theory}/{claim}", _page, name=LINKED),
    Route("/claims/{theory}/{claim}/run", _start, methods=["POST"]),
    Route("/claims/{theory}/{claim}/{run}/figure", _figure),
    Route("/claims/{theory}/{claim}/{run}/panel/{panel}", _panel),
    Route("/claims/{theory}/{claim}/{run}/figure.svg", _svg),
    Route("/claims/{theory}/{claim}/{run}/rows.csv", _rows),
]
