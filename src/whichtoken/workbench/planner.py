"""The planner room: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import time
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.errors import UsageError
from whichtoken.workbench.forecasts import LIMITS, Forecasts, StudyNumbers
from whichtoken.workbench.gate import LINKED
from whichtoken.workbench.job_files import JobRequest
from whichtoken.workbench.job_pages import jobs_of
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.uploads import TABLES, Uploads
from whichtoken.workbench.workers import slow_worker_of, worker_of

PLANNING = "whichtoken.workbench.planning"
TEXTS = {
    "length": ("L", "tokens in a sequence"),
    "signal_tokens": ("R", "tokens that carry the signal"),
    "strength": ("θ", "signal, in standard deviations of the noise"),
    "prevalence": ("π", "share of positive sequences"),
    "dim": ("d", "dimension of a token"),
    "samples": ("n", "labelled sequences you can get"),
    "target_error": ("ε", "test error you want; may stay empty"),
}


def uploads_of(request: Request) -> Uploads:
    """What users handed over to this workbench."""
    found: Uploads = request.app.state.uploads
    return found


def _page(request: Request) -> Response:
    pilots = [view for view in jobs_of(request).views() if view.request.kind == "pilot"]
    return room_page(
        request, "planner.html", limits=LIMITS, texts=TEXTS, given=request.query_params, pilots=pilots[:3]
    )  # fmt: skip


async def _quick(request: Request) -> Response:
    began = time.perf_counter()
    numbers, made = StudyNumbers.read(request.query_params), _forecasts(request)
    found = made.quick.get(numbers)
    if found is None:
        found = await worker_of(request).answer(request, f"{PLANNING}:quick_forecast", numbers, made.nearest(numbers))
        made.put_quick(numbers, found)
    spent = 1000 * (time.perf_counter() - began)
    return JSONResponse(found, headers={"server-timing": f"plan;dur={spent:.1f}"})


async def _exact(request: Request) -> Response:
    numbers, made = StudyNumbers.read(request.query_params), _forecasts(request)
    found = made.exact.get(numbers)
    if found is None:
        found, designs = await slow_worker_of(request).answer(request, f"{PLANNING}:exact_forecast", numbers)
        made.put_exact(numbers, found, designs)
    return JSONResponse(found)


def _forecasts(request: Request) -> Forecasts:
    found: Forecasts = request.app.state.forecasts
    return found


async def _pilot(request: Request) -> Response:
    async with uploads_of(request).form(request) as form:
        file = form.get("file")
        path = await uploads_of(request).take(file, (*TABLES, ".npz"))
        name = Path(getattr(file, "filename", "") or "pilot").name[:80]
        target = str(form.get("target_error") or "").strip()
        arguments = {
            "path": str(path), "bag": str(form.get("bag") or "bag"), "label": str(form.get("label") or "label"),
            "target_error": _share(target) if target else None,
        }  # fmt: skip
    id = await run_in_threadpool(jobs_of(request).start, JobRequest("pilot", f"pilot {name}", arguments))
    return RedirectResponse(f"/jobs/{id}", 303)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"target error '{text[:40]}' is not a number between 0 and 1")
    return value


routes = [
    Route("/planner", _page, name=LINKED),
    Route("/planner/quick", _quick),
    Route("/planner/exact", _exact),
    Route("/planner/pilot", _pilot, methods=["POST"]),
]
