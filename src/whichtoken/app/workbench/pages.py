"""The frame around every page, and one sentence for every error."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from whichtoken import __version__
from whichtoken.app.pages.frame import cut, maths
from whichtoken.app.pages.sentences import number
from whichtoken.app.workbench.middleware import DRAWN, HEADERS
from whichtoken.display.html import template_engine
from whichtoken.display.text import visible
from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.verdicts import in_words

NAVIGATION = {
    "/": "Explain", "/data": "Your data", "/claims": "Claims", "/planner": "Planner", "/dynamics": "Dynamics",
    "/inspect": "Inspect", "/jobs": "Jobs",
}  # fmt: skip
SENTENCES = {
    404: "there is nothing at this address; it may have been removed, or the link is incomplete",
    405: "this address does not take that kind of request",
}


def template_text(template: str, **values: Any) -> str:
    """A template of the workbench as text."""
    return _environment().get_template(template).render(**values)


def framed_page(
    request: Request, template: str, *, drawn: bool = False, status: int = 200, **values: Any
) -> HTMLResponse:
    """A page in the frame; `drawn` for pages with figures, which have their own style."""
    asked = request.url.path
    parts = [path for path in NAVIGATION if asked == path or (path != "/" and asked.startswith(path))]
    current = parts[0] if parts else "/claims"
    text = template_text(template, current=current, pages=NAVIGATION, **values)
    return HTMLResponse(text, status, DRAWN if drawn else None)


async def usage_error(request: Request, error: Exception) -> Response:
    """A mistake that the user can correct."""
    assert isinstance(error, UsageError)
    # fields of forms are labeled with the names of arguments, in words
    sentence = error.describe(lambda name, value: f"{name.replace('_', ' ')} {value}")
    # the first argument of the sentence is the field that is wrong, and a page says it there
    return error_response(request, 400, sentence, next(iter(error.arguments), ""))


async def http_error(request: Request, error: Exception) -> Response:
    """An unknown address or a wrong request."""
    assert isinstance(error, HTTPException)
    answer = error_response(request, error.status_code, SENTENCES.get(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def server_error(request: Request, error: Exception) -> Response:
    """A fault of the program."""
    answer = error_response(request, 500, f"something failed here: {in_one_line(error)}; the server still runs")
    # starlette sends this answer outside of the middleware
    answer.headers.update(HEADERS)
    return answer


async def client_gone(_: Request, __: Exception) -> Response:
    """The answer to a client that has disconnected; nobody reads it."""
    return Response(status_code=400)


def error_response(request: Request, status: int, sentence: str, field: str = "") -> Response:
    """One sentence as a page, or as JSON for a script, with the field of a form that it is about."""
    sentence = visible(" ".join(str(sentence).split()))
    if "text/html" in request.headers.get("accept", ""):
        return framed_page(request, "error.html", status=status, code=status, sentence=sentence)
    return JSONResponse({"error": sentence} | ({"field": field} if field else {}), status)


ERRORS: dict[Any, Any] = {
    UsageError: usage_error, HTTPException: http_error, ClientDisconnect: client_gone, Exception: server_error
}  # fmt: skip


@cache
def _environment() -> Environment:
    environment = template_engine("whichtoken.app.workbench")
    environment.filters["maths"] = maths
    environment.globals.update(version=__version__, number=number, cut=cut, in_words=in_words)
    return environment
