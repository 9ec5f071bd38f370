"""The dynamics pages: watch training while it runs, with theory's curve beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whichtoken.app.workbench.job_pages import event, event_stream
from whichtoken.app.workbench.middleware import LINKED
from whichtoken.app.workbench.pages import framed_page
from whichtoken.app.workbench.scenes import SCENES, Scene
from whichtoken.processes import python_command, python_environment

MOST_AT_ONCE = 3
LONGEST_LINE = 1 << 20  # bytes of one frame
SILENT_SECONDS = 300.0  # without a line, after which a scene is stopped
POLL = 0.5  # seconds between two checks whether the server stops
_playing = 0


def _scene(request: Request) -> Scene:
    id = request.path_params["scene"]
    if id not in SCENES:
        raise HTTPException(404)
    return SCENES[id]


def _page(request: Request) -> Response:
    return framed_page(request, "dynamics.html", scenes=SCENES, scene=_scene(request), given=request.query_params)


def _recording(request: Request) -> Response:
    return framed_page(request, "limits.html", scenes=SCENES)


async def _play(request: Request) -> Response:
    scene = _scene(request)
    return event_stream(_events(scene, scene.read(request.query_params), request.app.state.stopping))


async def _events(scene: Scene, parameters: dict[str, Any], stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """The lines of the scene's process as events; the process is killed when the client disconnects."""
    global _playing
    # in the generator, where nothing can come between the check and the count
    if _playing >= MOST_AT_ONCE:
        yield event("fault", {"error": f"{MOST_AT_ONCE} trainings are being watched already; stop one of them first"})
        return
    _playing += 1
    process = None
    try:
        yield event("state", {"said": "starting"})
        process = await asyncio.create_subprocess_exec(
            *python_command("whichtoken.app.workbench.scenes", scene.id, json.dumps(parameters)),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=python_environment(OMP_NUM_THREADS="1"), limit=LONGEST_LINE,
        )  # fmt: skip
        assert process.stdout is not None
        last = ""
        while line := await _line(process.stdout, stopping):
            last, data = json.loads(line)
            yield event(last, data)
        if last not in ("end", "fault") and not stopping():
            yield event("fault", {"error": "the training stopped: its process died, perhaps for lack of memory"})
    except (TimeoutError, ValueError):
        yield event("fault", {"error": "the training did not respond and was stopped; try smaller numbers"})
    finally:
        _playing -= 1
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


async def _line(stream: asyncio.StreamReader, stopping: Callable[[], bool]) -> bytes:
    """The next line; empty at the end, or when the server stops."""
    reading = asyncio.ensure_future(stream.readline())
    try:
        for _ in range(int(SILENT_SECONDS / POLL)):
            done, _pending = await asyncio.wait({reading}, timeout=POLL)
            if done:
                return reading.result()
            if stopping():
                return b""
        raise TimeoutError
    finally:
        reading.cancel()


routes = [
    Route("/dynamics", _recording, name=LINKED),
    Route("/dynamics/{scene}", _page, name=LINKED),
    Route("/dynamics/{scene}/play", _play),
]
