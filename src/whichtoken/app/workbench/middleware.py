"""The checks that every request passes, and the headers that every answer has.

A page of another site can make a browser send requests here, and can point its own name at 127.0.0.1 (DNS rebinding).
So the name in `Host` must be an address or this machine, and a request that changes something must come from a page of
this server (`Origin`). What another site embeds or fetches is refused before anything is computed (`Sec-Fetch-Site`);
only a link that a person follows may lead to one of our pages. If other machines can reach the server, the link
contains a secret as well.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whichtoken.app.workbench.settings import LARGEST_UPLOAD, ServerSettings, ip_address, is_loopback

LARGEST_FORM = 200_000  # bytes of a request without a file
BODY_SECONDS = 20.0  # without a byte, after which a request is given up
READING = ("GET", "HEAD")
LINKED = "linked"  # name of the routes that other sites may link to
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{inline}; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY.format(inline=""),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not `no-referrer`, with which browsers send `Origin: null` with a form
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# of pages with figures, which have their own style
DRAWN = {"content-security-policy": POLICY.format(inline=" 'unsafe-inline'")}


class SecurityMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, body_seconds: float = BODY_SECONDS) -> None:
        self.app, self.settings, self.body_seconds = app, settings, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            answer: ASGIApp = self.app if refusal is None else refusal
            await answer(scope, self._limit_body(receive, _most(Headers(scope=scope))), _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._known_host(host):
            return _refuse(421, "this address is not served here; open the link that 'whichtoken serve' printed")
        if not _same_origin(scope, headers, host):
            return _refuse(403, "this request comes from another site and is refused")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size[:20]) > _most(headers):
            return _refuse(413, _too_large(_most(headers)))
        return self._without_token(scope, headers) if self.settings.token else None

    def _known_host(self, host: str) -> bool:
        """Whether it is an address or a name of this machine; any other name may be another site's."""
        name = _name(host)
        if is_loopback(self.settings.host):
            return is_loopback(name)
        own = {"localhost", self.settings.host.lower(), socket.gethostname().lower()}
        return name in own or ip_address(name) is not None

    @property
    def cookie(self) -> str:
        """Its name depends on the port: a browser sends the cookies of all servers of a machine to each of them."""
        return f"whichtoken-{self.settings.port}"

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """None for a client with the cookie; a client with the token in its link gets the cookie."""
        if any(_equal(value, self.settings.token) for value in _cookies(headers, self.cookie)):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = query.pop("token", [""])[0]
        if scope["method"] not in READING or not _equal(given, self.settings.token):
            return _refuse(401, "this workbench needs the link with its token, as 'whichtoken serve' printed it")
        rest = urlencode(query, doseq=True)
        # two slashes would name another site
        path = "/" + scope["path"].lstrip("/")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self.cookie, self.settings.token, httponly=True, samesite="strict")
        return answer

    def _limit_body(self, receive: Receive, most: int) -> Receive:
        """The body, up to the largest size, as long as the client keeps sending."""
        received, complete = 0, False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.body_seconds)
            except TimeoutError:
                raise HTTPException(408, "the rest of the request did not arrive; send it again") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > most:
                raise HTTPException(413, _too_large(most))
            return message

        return limited


def _same_origin(scope: Scope, headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if origin is not None or scope["method"] not in READING:
        return origin == f"http://{host}"
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    # other sites may link here, but not show our pages in a frame, start computations or fetch files
    linked = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    pages = (route for route in scope["app"].routes if getattr(route, "name", "") == LINKED)
    return linked and any(route.matches(scope)[0] is Match.FULL for route in pages)


def _most(headers: Headers) -> int:
    """The largest size of a body in bytes: only forms with files may be large."""
    return LARGEST_UPLOAD if headers.get("content-type", "").startswith("multipart/form-data") else LARGEST_FORM


def _too_large(most: int) -> str:
    shown = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most // 1000} kB"
    return f"the request is larger than {shown}, the largest size that is accepted"


def _name(host: str) -> str:
    """The name or address in `Host`, without its port; empty for what no browser sends."""
    try:
        parts = urlsplit(f"//{host}")
    except ValueError:
        # an incomplete IPv6 address
        return ""
    return parts.hostname or "" if parts.netloc == host and "@" not in host else ""


def _cookies(headers: Headers, name: str) -> list[str]:
    """The values of one cookie; other servers of this machine may have set others."""
    pairs = (pair.partition("=") for pair in ";".join(headers.getlist("cookie")).split(";"))
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _refuse(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"whichtoken: {sentence}\n", status)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
