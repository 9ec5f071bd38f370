"""One frame around every page, and one sentence for whatever goes wrong."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from whichtoken import __version__
from whichtoken.display.templates import template_engine
from whichtoken.display.text import visible
from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.verdicts import in_words
from whichtoken.report.frame import cut, maths
from whichtoken.report.sentences import number
from whichtoken.workbench.gate import DRAWN, HEADERS

ROOMS = {"/": "Claims", "/planner": "Planner", "/data": "Your data", "/dynamics": "Dynamics", "/inspect": "Inspect",
         "/jobs": "Jobs"}  # fmt: skip
SENTENCES = {
    404: "there is nothing at this address; it may have been removed, or the link is incomplete",
    405: "this address does not take that kind of request",
}


def template_text(template: str, **values: Any) -> str:
    """A template of this room as text."""
    return _environment().get_template(template).render(**values)


def room_page(
    request: Request, template: str, *, drawn: bool = False, status: int = 200, **values: Any
) -> HTMLResponse:
    """A page in the frame; `drawn` for those with figures, which carry their own style."""
    room = next((path for path in ROOMS if path != "/" and request.url.path.startswith(path)), "/")
    return HTMLResponse(template_text(template, room=room, rooms=ROOMS, **values), status, DRAWN if drawn else None)


async def usage_error(request: Request, error: Exception) -> Response:
    """A mistake that the user can mend."""
    return said(request, 400, str(error))


async def http_error(request: Request, error: Exception) -> Response:
    """An address or a request that does not fit."""
    assert isinstance(error, HTTPException)
    answer = said(request, error.status_code, SENTENCES.get(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def server_error(request: Request, error: Exception) -> Response:
    """A fault of the program."""
    answer = said(request, 500, f"something failed here: {in_one_line(error)}; the server goes on")
    answer.headers.update(HEADERS)  # starlette answers this one outside of the gate
    return answer


async def nobody_left(_: Request, __: Exception) -> Response:
    """For a client that has gone before its answer."""
    return Response(status_code=400)


def said(request: Request, status: int, sentence: str) -> Response:
    """One sentence as a page, or as JSON for a script."""
    sentence = visible(" ".join(str(sentence).split()))
    if "text/html" in request.headers.get("accept", ""):
        return room_page(request, "error.html", status=status, code=status, sentence=sentence)
    return JSONResponse({"error": sentence}, status)


ERRORS: dict[Any, Any] = {
    UsageError: usage_error, HTTPException: http_error, ClientDisconnect: nobody_left, Exception: server_error
}  # fmt: skip


@cache
def _environment() -> Environment:
    environment = template_engine("whichtoken.workbench")
    environment.filters["maths"] = maths
    environment.globals.update(version=__version__, number=number, cut=cut, in_words=in_words)
    return environment
