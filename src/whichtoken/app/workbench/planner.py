"""The planner page: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
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
from whichtoken.app.workbench.uploads import TABLES, uploads_of
from whichtoken.app.workbench.workers import slow_worker_of, worker_of
from whichtoken.errors import UsageError

if TYPE_CHECKING:
    from whichtoken.theory.sparse_tokens import Task

PLANNING = "whichtoken.app.workbench.planning"  # the module that workers call
TEXTS = {
    "length": ("L", "tokens in a sequence"),
    "signal_tokens": ("R", "tokens that carry the signal"),
    "strength": ("θ", "signal, in standard deviations of the noise"),
    "prevalence": ("π", "share of positive sequences"),
    "dim": ("d", "dimension of a token"),
    "samples": ("n", "labeled sequences you can get"),
    "target_error": ("ε", "test error you want; may stay empty"),
}
# least, most and default of each number; the sliders go from the first to the second
LIMITS = {
    "length": (2, 1000, 10), "signal_tokens": (1, 100, 1), "strength": (0.1, 12.0, 5.0), "prevalence": (0.01, 0.99, 0.5),
    "dim": (10, 5000, 500), "samples": (20, 100_000, 2000), "target_error": (0.001, 0.5, None),
}  # fmt: skip
WHOLE = {"length", "signal_tokens", "dim", "samples"}
MOST_EXACT, MOST_QUICK = 200, 4096  # forecasts that are kept
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
        numbers = cls(**{name: _number(name, given.get(name)) for name in LIMITS})
        if numbers.signal_tokens >= numbers.length:
            raise UsageError(f"signal tokens {numbers.signal_tokens} must be fewer than length {numbers.length}")
        return numbers

    @property
    def task(self) -> Task:
        from whichtoken.theory.sparse_tokens import Task

        return Task(self.length, self.signal_tokens, self.strength, self.prevalence)

    def distance(self, other: StudyNumbers) -> float:
        """How different two studies are, on the logarithmic scales of the sliders."""
        names = ("length", "signal_tokens", "strength", "prevalence")
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        pairs.append((self.samples / self.dim, other.samples / other.dim))
        return sum(abs(math.log(one / two)) for one, two in pairs)


def _number(name: str, text: str | None) -> Any:
    least, most, default = LIMITS[name]
    if text is None or not text.strip():
        return default
    try:
        value = int(text) if name in WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise UsageError(f"{name.replace('_', ' ')} '{text[:40]}' is not {kind}") from None
    if not least <= value <= most:
        raise UsageError(
            f"{name.replace('_', ' ')} {text.strip()[:40]} is out of range; give a number from {least:g} to {most:g}"
        )
    return value


class Forecasts:
    """A cache of forecasts; quick forecasts use the designs of the nearest exact plan."""

    def __init__(self) -> None:
        self.exact: OrderedDict[StudyNumbers, dict[str, Any]] = OrderedDict()
        self.quick: OrderedDict[StudyNumbers, dict[str, Any]] = OrderedDict()
        self._designs: dict[StudyNumbers, Designs] = {}

    def put_exact(self, numbers: StudyNumbers, forecast: dict[str, Any], designs: Designs) -> None:
        self.exact[numbers], self._designs[numbers] = forecast, designs
        # quick forecasts are better with the new designs
        self.quick.clear()
        if len(self.exact) > MOST_EXACT:
            del self._designs[self.exact.popitem(last=False)[0]]

    def put_quick(self, numbers: StudyNumbers, forecast: dict[str, Any]) -> None:
        self.quick[numbers] = forecast
        if len(self.quick) > MOST_QUICK:
            self.quick.popitem(last=False)

    def nearest(self, numbers: StudyNumbers) -> Designs:
        """The designs of the nearest exact plan."""
        if not self._designs:
            return DEFAULT_DESIGNS
        return self._designs[min(self._designs, key=numbers.distance)]


def _page(request: Request) -> Response:
    pilots = [view for view in jobs_of(request).views() if view.request.kind == "pilot"]
    return framed_page(
        request, "planner.html", limits=LIMITS, texts=TEXTS, given=request.query_params, pilots=pilots[:3]
    )  # fmt: skip


async def _quick(request: Request) -> Response:
    began = time.perf_counter()
    forecasts: Forecasts = request.app.state.forecasts
    numbers = StudyNumbers.read(request.query_params)
    forecast = forecasts.quick.get(numbers)
    if forecast is None:
        asked = f"{PLANNING}:quick_forecast", numbers, forecasts.nearest(numbers)
        forecast = await worker_of(request).answer(request, *asked)
        forecasts.put_quick(numbers, forecast)
    spent = 1000 * (time.perf_counter() - began)
    return JSONResponse(forecast, headers={"server-timing": f"plan;dur={spent:.1f}"})


async def _exact(request: Request) -> Response:
    forecasts: Forecasts = request.app.state.forecasts
    numbers = StudyNumbers.read(request.query_params)
    forecast = forecasts.exact.get(numbers)
    if forecast is None:
        forecast, designs = await slow_worker_of(request).answer(request, f"{PLANNING}:exact_forecast", numbers)
        forecasts.put_exact(numbers, forecast, designs)
    return JSONResponse(forecast)


async def _pilot(request: Request) -> Response:
    async with uploads_of(request).form(request) as form:
        file = form.get("file")
        path = await uploads_of(request).take(file, (*TABLES, ".npz"))
        name = Path(getattr(file, "filename", "") or "pilot").name[:80]
        target = str(form.get("target_error") or "").strip()
        arguments = {
            "path": str(path), "bag": str(form.get("bag") or "bag"), "label": str(form.get("label") or "label"),
            "target_error": _share(target) if target else None,
        }  # fmt: skip
    id = await run_in_threadpool(jobs_of(request).start, JobRequest("pilot", f"pilot {name}", arguments))
    return RedirectResponse(f"/jobs/{id}", 303)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"target error '{text[:40]}' is not a number between 0 and 1")
    return value


routes = [
    Route("/planner", _page, name=LINKED),
    Route("/planner/quick", _quick),
    Route("/planner/exact", _exact),
    Route("/planner/pilot", _pilot, methods=["POST"]),
]
