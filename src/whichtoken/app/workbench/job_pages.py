"""Jobs: the pages, the buttons, and the stream of progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from whichtoken.app.workbench.jobs import JobFolder, Jobs, JobView
from whichtoken.app.workbench.middleware import LINKED
from whichtoken.app.workbench.pages import framed_page
from whichtoken.app.workbench.stored_claims import beside_record
from whichtoken.lab.verdicts import readable_verdicts

POLL = 0.2  # seconds between two checks of the progress of a job
KEEP_ALIVE = 15.0  # seconds without progress, after which a comment is sent
MOST_STREAMS = 100
MOST_DIGITS = 15  # of an offset in a file
_streams = 0


def jobs_of(request: Request) -> Jobs:
    """The jobs of this workbench."""
    found: Jobs = request.app.state.jobs
    return found


def job_of(request: Request) -> tuple[JobFolder, JobView]:
    """The job that an address names, and its view."""
    jobs, id = jobs_of(request), str(request.path_params["id"])
    try:
        return jobs.find(id), jobs.view(id)
    except (OSError, ValueError, KeyError):
        # there is no such job, or its files are damaged
        raise HTTPException(404) from None


def _all(request: Request) -> Response:
    return framed_page(request, "jobs.html", jobs=jobs_of(request).views())


def _one(request: Request) -> Response:
    job, view = job_of(request)
    end = job.end
    result = (end.result if end is not None else None) or {}
    verdicts = []
    if view.request.kind == "claim":
        asked = [str(view.request.arguments.get(name)) for name in ("id", "preset")]
        stored = result.get("verdicts")
        verdicts = beside_record(asked[0], asked[1], readable_verdicts(stored if isinstance(stored, list) else []))
    lines, notes = _texts(result.get("lines")), _texts(result.get("notes"))
    return framed_page(request, "job.html", job=view, log=job.log, verdicts=verdicts, lines=lines, notes=notes)


def _texts(found: Any) -> list[str]:
    return [str(text) for text in found] if isinstance(found, list) else []


def _state(request: Request) -> Response:
    job, view = job_of(request)
    end = job.end
    return JSONResponse({**_summary(view), "result": end.result if end else None})


def _log(request: Request) -> Response:
    return PlainTextResponse(job_of(request)[0].log)


def _cancel(request: Request) -> Response:
    _, view = job_of(request)
    jobs_of(request).cancel(view.id)
    return RedirectResponse(f"/jobs/{view.id}", 303)


def _resume(request: Request) -> Response:
    _, view = job_of(request)
    jobs_of(request).resume(view.id)
    return RedirectResponse(f"/jobs/{view.id}", 303)


def _events(request: Request) -> Response:
    if _streams >= MOST_STREAMS:
        raise HTTPException(503, "too many pages show running jobs; close some of them")
    last = request.headers.get("last-event-id", "")
    offset = int(last[:MOST_DIGITS]) if last.isdecimal() else 0
    return event_stream(_follow(jobs_of(request), job_of(request)[1].id, offset, request.app.state.stopping))


def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """An answer of server-sent events."""
    return StreamingResponse(events, media_type="text/event-stream")


def event(kind: str, data: object, id: int | None = None) -> str:
    """One server-sent event."""
    line = "" if id is None else f"id: {id}\n"
    return f"{line}event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


async def _follow(jobs: Jobs, id: str, offset: int, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Progress from an offset in its file, then the end: the same for every tab, and after a reload."""
    global _streams
    _streams += 1
    try:
        silent, sent = 0.0, ""
        while not stopping():
            try:
                view, lines = await asyncio.to_thread(_progress, jobs, id, offset)
            except (OSError, ValueError, KeyError):
                # its files were deleted
                return
            for place, progress in lines:
                offset, silent = place, 0.0
                yield event("progress", progress, place)
            if view.state != sent:
                sent, silent = view.state, 0.0
                yield event("end" if not view.is_open else "state", _summary(view))
            if not view.is_open:
                return
            await asyncio.sleep(POLL)
            silent += POLL
            if silent > KEEP_ALIVE:
                silent = 0.0
                yield ": still here\n\n"
    finally:
        _streams -= 1


def _progress(jobs: Jobs, id: str, offset: int) -> tuple[JobView, list[tuple[int, dict[str, Any]]]]:
    # the view first: then all progress that was written before the end can be read
    view = jobs.view(id)
    return view, list(jobs.find(id).progress(offset))


def _summary(view: JobView) -> dict[str, object]:
    return {**asdict(view), "is_open": view.is_open}


routes = [
    Route("/jobs", _all, name=LINKED),
    Route("/jobs/{id}", _one, name=LINKED),
    Route("/jobs/{id}/state", _state),
    Route("/jobs/{id}/log", _log),
    Route("/jobs/{id}/events", _events),
    Route("/jobs/{id}/cancel", _cancel, methods=["POST"]),
    Route("/jobs/{id}/resume", _resume, methods=["POST"]),
]
