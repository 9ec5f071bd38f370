"""The planner page: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.app.workbench.job_pages import jobs_of
from whichtoken.app.workbench.jobs import JobRequest
from whichtoken.app.workbench.middleware import LINKED
from whichtoken.app.workbench.pages import framed_page
from whichtoken.app.workbench.settings import Parameter
from whichtoken.app.workbench.uploads import TABLES, uploads_of
from whichtoken.app.workbench.workers import slow_worker_of, worker_of
from whichtoken.datasets.sparse_tokens import check_signal_tokens

if TYPE_CHECKING:
    from whichtoken.theory.sparse_tokens import Task

PLANNING = "whichtoken.app.workbench.planning"  # the module that workers call
PARAMETERS = (
    Parameter("length", 10, 2, 1000, doc="tokens in a sequence", symbol="L"),
    Parameter("signal_tokens", 1, 1, 100, doc="tokens that carry the signal", symbol="R"),
    Parameter("strength", 5.0, 0.1, 12.0, doc="signal, in standard deviations of the noise", symbol="θ"),
    Parameter("prevalence", 0.5, 0.01, 0.99, doc="share of positive sequences", symbol="π"),
    Parameter("dim", 500, 10, 5000, doc="dimension of a token", symbol="d"),
    Parameter("samples", 2000, 20, 100_000, doc="labeled sequences you can get", symbol="n"),
    Parameter("target_error", None, 0.001, 0.49, doc="test error you want; may stay empty", symbol="ε"),
)
Designs = tuple[tuple[Any, ...], tuple[Any, ...]]  # fields of the `Design` and of the `SharedDesign` of a plan
DEFAULT_DESIGNS: Designs = (0.45, 1.0, True, math.nan), (1.0, True, math.nan)  # before any plan was made


@dataclass(frozen=True)
class StudyNumbers:
    """The numbers of the sliders."""

    length: int
    signal_tokens: int
    strength: float
    prevalence: float
    dim: int
    samples: int
    target_error: float | None = None

    @classmethod
    def read(cls, given: Any) -> StudyNumbers:
        """Numbers from an address, with defaults for those that are missing."""
        numbers = cls(**{parameter.name: parameter.read(given.get(parameter.name)) for parameter in PARAMETERS})
        check_signal_tokens(numbers.signal_tokens, numbers.length)
        return numbers

    @property
    def task(self) -> Task:
        from whichtoken.theory.sparse_tokens import Task

        return Task(self.length, self.signal_tokens, self.strength, self.prevalence)


def _page(request: Request) -> Response:
    pilots = [view for view in jobs_of(request).views() if view.request.kind == "pilot"]
    return framed_page(request, "planner.html", parameters=PARAMETERS, given=request.query_params, pilots=pilots[:3])


async def _quick(request: Request) -> Response:
    began = time.perf_counter()
    asked = f"{PLANNING}:quick_forecast", StudyNumbers.read(request.query_params), request.app.state.designs
    forecast = await worker_of(request).answer(request, *asked, keep=True)
    spent = 1000 * (time.perf_counter() - began)
    return JSONResponse(forecast, headers={"server-timing": f"plan;dur={spent:.1f}"})


async def _exact(request: Request) -> Response:
    asked = f"{PLANNING}:exact_forecast", StudyNumbers.read(request.query_params)
    # quick forecasts now use its designs
    forecast, request.app.state.designs = await slow_worker_of(request).answer(request, *asked, keep=True)
    return JSONResponse(forecast)


async def _pilot(request: Request) -> Response:
    async with uploads_of(request).form(request) as form:
        file = form.get("file")
        path = await uploads_of(request).take(file, (*TABLES, ".npz"))
        name = Path(getattr(file, "filename", "") or "pilot").name[:80]
        arguments = {
            "path": str(path), "bag": str(form.get("bag") or "bag"), "label": str(form.get("label") or "label"),
            "target_error": PARAMETERS[-1].read(str(form.get("target_error") or "")),
        }  # fmt: skip
    id = await run_in_threadpool(jobs_of(request).start, JobRequest("pilot", f"pilot {name}", arguments))
    return RedirectResponse(f"/jobs/{id}", 303)


routes = [
    Route("/planner", _page, name=LINKED),
    Route("/planner/quick", _quick),
    Route("/planner/exact", _exact),
    Route("/planner/pilot", _pilot, methods=["POST"]),
]
