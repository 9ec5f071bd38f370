"""The application: pages, static files and error handlers behind one middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import whichtoken
from whichtoken.app.workbench import claims, data, dynamics, inspect, job_pages, planner
from whichtoken.app.workbench.jobs import Jobs
from whichtoken.app.workbench.middleware import SecurityMiddleware
from whichtoken.app.workbench.model_store import ModelStore
from whichtoken.app.workbench.pages import ERRORS
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.app.workbench.uploads import Uploads
from whichtoken.app.workbench.workers import Worker

FOLDERS = ("app", "workbench", "static"), ("display", "assets")


class PackagedFiles(StaticFiles):
    """Files of the package; a browser caches them and asks whether they have changed."""

    def __init__(self) -> None:
        package = Path(whichtoken.__file__).parent
        super().__init__(directory=package.joinpath(*FOLDERS[0]), follow_symlink=False)
        self.all_directories = [package.joinpath(*folder) for folder in FOLDERS]

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers["cache-control"] = "no-cache"
        return answer


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
            *data.routes,
            *dynamics.routes,
            *inspect.routes,
            Mount("/static", app=PackagedFiles()),
        ],
        exception_handlers=ERRORS,
        middleware=[Middleware(SecurityMiddleware, settings=settings)],
        lifespan=lifespan,
    )
    app.state.settings, app.state.uploads, app.state.stopping = settings, Uploads(), lambda: False
    app.state.worker, app.state.slow_worker, app.state.designs = Worker(kept=4096), Worker(), planner.DEFAULT_DESIGNS
    app.state.jobs, app.state.models = Jobs(settings.home / "jobs"), ModelStore((settings.home / "models").absolute())
    return app
