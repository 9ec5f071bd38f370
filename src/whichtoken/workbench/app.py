"""The application: rooms, static files and errors behind one gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from whichtoken.workbench import claims, data_room, dynamics, inspect_room, job_pages, planner
from whichtoken.workbench.forecasts import Forecasts
from whichtoken.workbench.gate import Gate
from whichtoken.workbench.jobs import Jobs
from whichtoken.workbench.model_shelf import ModelShelf
from whichtoken.workbench.packaged_files import PackagedFiles
from whichtoken.workbench.pages import ERRORS
from whichtoken.workbench.settings import ServerSettings
from whichtoken.workbench.uploads import Uploads
from whichtoken.workbench.workers import Worker


def create_app(settings: ServerSettings) -> Starlette:
    """The workbench of one folder, as an ASGI application.

    Parameters
    ----------
    settings : ServerSettings
        Folder, address and token.

    Returns
    -------
    Starlette
        The application; it starts nothing before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for part in (app.state.worker, app.state.slow_worker, app.state.jobs, app.state.uploads):
            part.close()

    app = Starlette(
        routes=[
            *claims.routes,
            *job_pages.routes,
            *planner.routes,
            *data_room.routes,
            *dynamics.routes,
            *inspect_room.routes,
            Mount("/static", app=PackagedFiles()),
        ],
        exception_handlers=ERRORS,
        middleware=[Middleware(Gate, settings=settings)],
        lifespan=lifespan,
    )
    app.state.settings, app.state.uploads, app.state.stopping = settings, Uploads(), lambda: False
    app.state.worker, app.state.slow_worker, app.state.forecasts = Worker(), Worker(), Forecasts()
    app.state.jobs, app.state.shelf = Jobs(settings.home / "jobs"), ModelShelf((settings.home / "models").absolute())
    return app
