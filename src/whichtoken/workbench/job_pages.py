"""Pages, buttons and the stream of one job."""

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

from whichtoken.workbench.jobs import Jobs
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.stored_claims import beside_record

POLL = 0.2  # seconds between two looks at the progress of a job
BEAT = 15.0  # seconds after which a silent stream shows that it lives
MOST_STREAMS = 100
MOST_DIGITS = 15  # of a place in a file
_streams = 0


def jobs_of(request: Request) -> Jobs:
    """The jobs of this workbench."""
    found: Jobs = request.app.state.jobs
    return found


def _id(request: Request) -> str:
    id = str(request.path_params["id"])
    try:
        jobs_of(request).view(id)
    except (OSError, ValueError, TypeError, KeyError):  # none of that name, or its files are damaged
        raise HTTPException(404) from None
    return id


def _all(request: Request) -> Response:
    return room_page(request, "jobs.html", jobs=jobs_of(request).views())


def _one(request: Request) -> Response:
    view = jobs_of(request).view(_id(request))
    job = jobs_of(request).find(view.id)
    verdicts: list[Any] = []
    if job.end is not None and view.request.kind == "claim" and job.end.result:
        arguments = view.request.arguments
        verdicts = beside_record(arguments["id"], arguments["preset"], job.end.result["verdicts"])
    result = (job.end.result if job.end is not None else None) or {}
    lines, notes = result.get("lines", []), result.get("notes", [])
    return room_page(request, "job.html", job=view, log=job.log, verdicts=verdicts, lines=lines, notes=notes)


def _state(request: Request) -> Response:
    view = jobs_of(request).view(_id(request))
    end = jobs_of(request).find(view.id).end
    return JSONResponse({**_summary(jobs_of(request), view.id), "result": end.result if end else None})


def _log(request: Request) -> Response:
    return PlainTextResponse(jobs_of(request).find(_id(request)).log)


def _cancel(request: Request) -> Response:
    jobs_of(request).cancel(id := _id(request))
    return RedirectResponse(f"/jobs/{id}", 303)


def _go_on(request: Request) -> Response:
    jobs_of(request).go_on(id := _id(request))
    return RedirectResponse(f"/jobs/{id}", 303)


def _events(request: Request) -> Response:
    if _streams >= MOST_STREAMS:
        raise HTTPException(503, "too many pages follow jobs at once; close some of them")
    last = request.headers.get("last-event-id", "")
    offset = int(last[:MOST_DIGITS]) if last.isdecimal() else 0
    return event_stream(_follow(jobs_of(request), _id(request), offset, request.app.state.stopping))


def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """An answer of server-sent events."""
    return StreamingResponse(events, media_type="text/event-stream")


def event(kind: str, data: object, id: int | None = None) -> str:
    """One server-sent event."""
    place = "" if id is None else f"id: {id}\n"
    return f"{place}event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


async def _follow(jobs: Jobs, id: str, offset: int, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Progress from a place in its file on, then the end: the same for every tab, and after a reload."""
    global _streams
    _streams += 1
    try:
        silent, said = 0.0, ""
        while not stopping():
            view = await asyncio.to_thread(jobs.view, id)
            for place, news in await asyncio.to_thread(_news, jobs, id, offset):
                offset, silent = place, 0.0
                yield event("progress", news, place)
            if view.state != said:
                said, silent = view.state, 0.0
                yield event("end" if not view.is_open else "state", _summary(jobs, id))
            if not view.is_open:
                return
            await asyncio.sleep(POLL)
            silent += POLL
            if silent > BEAT:
                silent = 0.0
                yield ": still here\n\n"
    finally:
        _streams -= 1


def _news(jobs: Jobs, id: str, offset: int) -> list[tuple[int, dict[str, Any]]]:
    return list(jobs.find(id).news(offset))


def _summary(jobs: Jobs, id: str) -> dict[str, object]:
    view = jobs.view(id)
    return {**asdict(view), "is_open": view.is_open}


routes = [
    Route("/jobs", _all),
    Route("/jobs/{id}", _one),
    Route("/jobs/{id}/state", _state),
    Route("/jobs/{id}/log", _log),
    Route("/jobs/{id}/events", _events),
    Route("/jobs/{id}/cancel", _cancel, methods=["POST"]),
    Route("/jobs/{id}/go-on", _go_on, methods=["POST"]),
]
