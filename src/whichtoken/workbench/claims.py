"""The claims room: what holds, live from the ledger, and a form to run a claim with other numbers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.lab.discovery import experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.report.frame import render
from whichtoken.workbench.claim_form import form_fields
from whichtoken.workbench.gate import DRAWN, LINKED
from whichtoken.workbench.job_files import JobRequest
from whichtoken.workbench.job_pages import jobs_of
from whichtoken.workbench.pages import ROOMS, room_page, template_text
from whichtoken.workbench.settings import ServerSettings
from whichtoken.workbench.stored_claims import (
    DrawnRun,
    Stamp,
    StoredRun,
    on_record,
    runs_of,
    stamp,
    state_counts,
)
from whichtoken.workbench.theory_cards import theory_cards
from whichtoken.workbench.workers import slow_worker_of, worker_of

FORM, STORED = "whichtoken.workbench.claim_form", "whichtoken.workbench.stored_claims"  # what workers do
MOST_FIELDS = 200


def settings_of(request: Request) -> ServerSettings:
    """The settings of this workbench."""
    found: ServerSettings = request.app.state.settings
    return found


def _overview(request: Request) -> Response:
    out = settings_of(request).out
    return HTMLResponse(_overview_text(out, stamp(out)), headers=DRAWN)


@lru_cache(maxsize=2)
def _overview_text(out: Path, _: Stamp) -> str:
    """The first page, made once for each state of the ledger."""
    stored = runs_of(out)
    counts = state_counts(state for runs in stored.values() for state in _states(runs[0]))
    return template_text(
        "claims.html", room="/", rooms=ROOMS, cards=theory_cards(stored), faults=faults(), counts=counts,
    )  # fmt: skip


def _states(run: StoredRun) -> list[str]:
    return [] if run.stale or run.judged is None else [str(verdict["state"]) for verdict in run.judged.verdicts]


def _claim(request: Request) -> Experiment[Any]:
    id = f"{request.path_params['theory']}/{request.path_params['claim']}"
    if id not in experiments():
        raise HTTPException(404)
    return experiments()[id]


def _run(request: Request, claim: Experiment[Any]) -> StoredRun:
    for run in runs_of(settings_of(request).out).get(claim.id, []):
        if run.id == request.path_params["run"]:
            return run
    raise HTTPException(404)


def _page(request: Request) -> Response:
    claim = _claim(request)
    runs = runs_of(settings_of(request).out).get(claim.id, [])
    mine = [view for view in jobs_of(request).views() if view.is_open and view.request.arguments.get("id") == claim.id]
    return room_page(
        request, "claim.html", drawn=True, claim=claim, runs=runs, fields=form_fields(claim), jobs=mine,
        given=dict(request.query_params), recorded=_recorded(claim, runs),
    )  # fmt: skip


def _recorded(claim: Experiment[Any], runs: list[StoredRun]) -> dict[str, dict[str, Any]]:
    """What is on record at the sizes that were not judged here; where they were, it stands in the tables."""
    judged = {run.run.preset for run in runs if run.judged and not run.stale}
    return {
        preset: {"verdicts": verdicts, "counts": state_counts(verdict["state"] for verdict in verdicts)}
        for preset, verdicts in on_record(claim.id).items()
        if preset not in judged
    }


async def _drawn(request: Request, claim: Experiment[Any]) -> DrawnRun:
    """The picture and the numbers, drawn once for each state of the ledger."""
    run, out = await run_in_threadpool(_run, request, claim), settings_of(request).out
    asked = (out, stamp(out), run.run.key, f"/claims/{claim.id}/{run.id}")
    found: DrawnRun = await slow_worker_of(request).answer(request, f"{STORED}:draw_run", *asked, keep=True)
    return found


async def _panel(request: Request) -> Response:
    """One panel of a figure, for the card of its theory."""
    found = await _drawn(request, _claim(request))
    drawn = {str(number): svg for number, svg in enumerate(found.panels)}
    missing = Markup('<p class="quiet">{}</p>').format(
        found.no_figure or "This panel needs rows that are not there yet."
    )
    return HTMLResponse(drawn.get(request.path_params["panel"], missing), headers=DRAWN)


async def _figure(request: Request) -> Response:
    """The picture and the numbers, asked for by the page once it stands."""
    return HTMLResponse((await _drawn(request, _claim(request))).part, headers=DRAWN)


async def _svg(request: Request) -> Response:
    claim = _claim(request)
    found = await _drawn(request, claim)
    if not found.picture:
        raise HTTPException(404)
    return Response(found.picture, media_type="image/svg+xml", headers=_download(claim, "svg") | DRAWN)


async def _rows(request: Request) -> Response:
    """The rows of the run, one line each."""
    claim, out = _claim(request), settings_of(request).out
    run = await run_in_threadpool(_run, request, claim)
    text = await slow_worker_of(request).answer(request, f"{STORED}:rows_of_run", out, stamp(out), run.run.key)
    return Response(text, media_type="text/csv", headers=_download(claim, "csv"))


def _reading(request: Request) -> Response:
    return room_page(request, "reading.html", body=Markup(render("reading.html")))


def _download(claim: Experiment[Any], suffix: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{claim.id.replace("/", "-")}.{suffix}"'}


async def _start(request: Request) -> Response:
    """Check the form, then start the run as a job; what does not fit is said before anything runs."""
    claim = _claim(request)
    async with request.form(max_files=0, max_fields=MOST_FIELDS) as sent:
        form = {name: str(value) for name, value in sent.items()}
    arguments, title = await worker_of(request).answer(request, f"{FORM}:claim_arguments", claim.id, form)
    arguments["out"] = str(settings_of(request).out.absolute())
    asked = JobRequest("claim", title, arguments, page=f"/claims/{claim.id}")
    id = await run_in_threadpool(jobs_of(request).start, asked)
    return RedirectResponse(f"/jobs/{id}", 303)


routes = [
    Route("/", _overview, name=LINKED),
    Route("/reading", _reading, name=LINKED),
    Route("/claims/{theory}/{claim}", _page, name=LINKED),
    Route("/claims/{theory}/{claim}/run", _start, methods=["POST"]),
    Route("/claims/{theory}/{claim}/{run}/figure", _figure),
    Route("/claims/{theory}/{claim}/{run}/panel/{panel}", _panel),
    Route("/claims/{theory}/{claim}/{run}/figure.svg", _svg),
    Route("/claims/{theory}/{claim}/{run}/rows.csv", _rows),
]
