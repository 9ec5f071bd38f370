"""The planner room: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import time
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.errors import UsageError
from whichtoken.workbench.job_files import JobRequest
from whichtoken.workbench.job_pages import jobs_of
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.uploads import TABLES, Uploads

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
    from whichtoken.workbench.planning import LIMITS

    pilots = [view for view in jobs_of(request).views() if view.request.kind == "pilot"]
    return room_page(
        request, "planner.html", limits=LIMITS, texts=TEXTS, given=request.query_params, pilots=pilots[:3]
    )  # fmt: skip


def _quick(request: Request) -> Response:
    from whichtoken.workbench.planning import StudyNumbers, quick_forecast

    began = time.perf_counter()
    found = quick_forecast(StudyNumbers.read(request.query_params))
    spent = 1000 * (time.perf_counter() - began)
    return JSONResponse(found, headers={"server-timing": f"plan;dur={spent:.1f}"})


def _exact(request: Request) -> Response:
    from whichtoken.workbench.planning import StudyNumbers, exact_forecast

    return JSONResponse(exact_forecast(StudyNumbers.read(request.query_params)))


async def _pilot(request: Request) -> Response:
    async with request.form(max_files=1, max_fields=10) as form:
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
    Route("/planner", _page),
    Route("/planner/quick", _quick),
    Route("/planner/exact", _exact),
    Route("/planner/pilot", _pilot, methods=["POST"]),
]
