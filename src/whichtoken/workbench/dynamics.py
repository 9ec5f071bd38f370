"""The dynamics room: watch training as it computes, with theory's curve beside it."""

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

from whichtoken.processes import python_command, python_environment
from whichtoken.workbench.gate import LINKED
from whichtoken.workbench.job_pages import event, event_stream
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.scenes import SCENES, Scene

MOST_AT_ONCE = 3
LONGEST_LINE = 1 << 20  # bytes of one piece of news
PATIENCE = 300.0  # seconds without news after which a scene is stopped
LOOK = 0.5  # seconds between two looks whether the server stops
_playing = 0


def _scene(request: Request) -> Scene:
    id = request.path_params.get("scene", next(iter(SCENES)))
    if id not in SCENES:
        raise HTTPException(404)
    return SCENES[id]


def _page(request: Request) -> Response:
    return room_page(request, "dynamics.html", scenes=SCENES, scene=_scene(request), given=request.query_params)


async def _play(request: Request) -> Response:
    scene = _scene(request)
    return event_stream(_news(scene, scene.read(request.query_params), request.app.state.stopping))


async def _news(scene: Scene, knobs: dict[str, Any], stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """The lines of the scene's process as events; it ends with whoever watches it."""
    global _playing
    if _playing >= MOST_AT_ONCE:  # here, where nothing can come between the look and the count
        yield event("fault", {"error": f"{MOST_AT_ONCE} trainings are being watched already; stop one of them first"})
        return
    _playing += 1
    process = None
    try:
        yield event("state", {"said": "starting"})
        process = await asyncio.create_subprocess_exec(
            *python_command("whichtoken.workbench.scene_process", scene.id, json.dumps(knobs)),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=python_environment(OMP_NUM_THREADS="1"), limit=LONGEST_LINE,
        )  # fmt: skip
        assert process.stdout is not None
        last = ""
        while line := await _line(process.stdout, stopping):
            last, data = json.loads(line)
            yield event(last, data)
        if last not in ("end", "fault") and not stopping():
            yield event("fault", {"error": "the training was stopped; its process died, perhaps for want of memory"})
    except (TimeoutError, ValueError):
        yield event("fault", {"error": "the training does not answer and was stopped; try smaller numbers"})
    finally:
        _playing -= 1
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


async def _line(stream: asyncio.StreamReader, stopping: Callable[[], bool]) -> bytes:
    """The next piece of news; nothing at the end, or when the server stops."""
    reading = asyncio.ensure_future(stream.readline())
    try:
        for _ in range(int(PATIENCE / LOOK)):
            done, _pending = await asyncio.wait({reading}, timeout=LOOK)
            if done:
                return reading.result()
            if stopping():
                return b""
        raise TimeoutError
    finally:
        reading.cancel()


routes = [
    Route("/dynamics", _page, name=LINKED),
    Route("/dynamics/{scene}", _page, name=LINKED),
    Route("/dynamics/{scene}/play", _play),
]
