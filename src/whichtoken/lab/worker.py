"""What a worker does with a task: find the experiment, make the stream, run on one thread, never raise."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from whichtoken import __version__
from whichtoken.lab.canonical import plain, random_stream
from whichtoken.lab.discovery import find
from whichtoken.lab.experiment import Predicted
from whichtoken.lab.plan import Task, read_point

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What came of a task: a measurement or a prediction, or why there is none."""

    status: Literal["ok", "failed"]
    message: str
    values: Mapping[str, Any]
    seconds: float
    package_version: str = __version__


def work(task: Task) -> Outcome:
    """Run one task. A fault of the experiment is an outcome, not an exception."""
    start = time.perf_counter()
    try:
        use_one_thread()
        values = _values(task)
        _refuse_non_finite(values)
    except (Exception, SystemExit) as error:
        return Outcome("failed", _in_one_line(error), {}, time.perf_counter() - start)
    return Outcome("ok", "", values, time.perf_counter() - start)


def _values(task: Task) -> Mapping[str, Any]:
    experiment = find(task.experiment)
    point = read_point(experiment, task.point)
    if task.seed is None:
        return {
            name: Predicted(plain(item.value), float(item.error)) for name, item in experiment.predict(point).items()
        }
    rng = random_stream(experiment.id, task.seed, experiment.problem(point))
    measured: dict[str, Any] = plain(experiment.run(point, rng))
    json.dumps(measured)  # a value that cannot be stored is a fault of this point, found here
    return measured


@cache
def use_one_thread() -> None:
    """Limit BLAS, OpenMP, numba and torch in this process, for good: sums then have one order, on any machine.

    Libraries that are loaded are limited now; those that load later read the environment.
    """
    from threadpoolctl import threadpool_limits

    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    for module in {"torch", "numba"} & sys.modules.keys():
        sys.modules[module].set_num_threads(1)
    threadpool_limits(1)


def _refuse_non_finite(values: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, Predicted):
            value = [value.value, value.error]
        if isinstance(value, Mapping):
            _refuse_non_finite(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            _refuse_non_finite(dict(enumerate(value)), f"{prefix}{name}.")  # type: ignore[arg-type]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"'{prefix}{name}' is {value}")


def _in_one_line(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"
