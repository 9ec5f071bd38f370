"""Run one task in a worker process: find the experiment, create its random stream, run on one thread, never raise."""

from __future__ import annotations

import ctypes
import io
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from whichtoken import __version__
from whichtoken.display.shown import Shown
from whichtoken.errors import in_one_line
from whichtoken.lab.canonical import plain, random_stream
from whichtoken.lab.discovery import find
from whichtoken.lab.experiment import Experiment, Predicted
from whichtoken.lab.plan import RunTask, read_point
from whichtoken.lab.renamed import born_names

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# flows amplify differences in the last bit, so all machines use instructions that every x86 server has
BLAS_KERNELS = "Haswell"
WIDE_VECTORS = ("AVX512", "X86_V4")  # what newer processors would add, as numpy names them
LARGEST = 64 * 2**20  # characters of JSON in one row
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def worker_environment() -> dict[str, str]:
    """Environment variables of a process that computes points: one thread, the same instructions on every machine."""
    from numpy._core import _multiarray_umath as numpy_core  # type: ignore[attr-defined]

    one_thread = dict.fromkeys((*THREAD_VARIABLES, "NUMBA_NUM_THREADS"), "1")
    if not numpy_core.__cpu_features__.get("AVX2"):
        return one_thread
    wide = [
        name
        for name in numpy_core.__cpu_dispatch__
        if name.startswith(WIDE_VECTORS) and numpy_core.__cpu_features__[name]
    ]
    return {
        **one_thread,
        "OPENBLAS_CORETYPE": BLAS_KERNELS,
        **({"NPY_DISABLE_CPU_FEATURES": " ".join(wide)} if wide else {}),
    }


@dataclass(frozen=True)
class Outcome(Shown):
    """The result of a task: a measurement or a prediction, or the reason why there is none."""

    status: Literal["ok", "failed"]
    message: str
    values: Mapping[str, Any]
    seconds: float
    package_version: str = __version__


def work(task: RunTask) -> Outcome:
    """Run one task; any error of the experiment becomes a failed outcome instead of an exception."""
    with suppress(Exception):  # the time of a point does not include imports
        find(task.experiment)
    start = time.process_time()  # processor time does not depend on how busy the machine is
    try:
        use_one_thread()
        values = _values(task)
    except BaseException as error:
        return Outcome("failed", in_one_line(error), {}, time.process_time() - start)
    return Outcome("ok", "", values, time.process_time() - start)


class _Sink(io.TextIOBase):
    """Drops what is written; unlike os.devnull it cannot be closed by a point that closes files which are not its own."""

    def write(self, text: str) -> int:
        return len(text)


def prepare_worker(driver: int | None = None) -> None:
    """Set up a worker before its first point: it prints nothing, and exits with its driver.

    Parameters
    ----------
    driver : id of the process that started this one for its run; None for a worker that others use too.
    """
    if driver is None:
        return
    # warnings and tracebacks stay off the driver's terminal unless Python's -W asks for them: errors are stored as messages
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        sys.stderr = _Sink()
    exit_with_parent(driver)


def init_worker(driver: int) -> None:
    """Set up a worker process: it ignores Ctrl-C, prints nothing, and exits with its driver."""
    import loky.process_executor

    # loky takes the 300 MB that torch needs for a memory leak and would replace the worker, which loads torch again
    loky.process_executor._MAX_MEMORY_LEAK_SIZE = 1 << 40
    # the driver alone handles Ctrl-C, so a KeyboardInterrupt in here comes from the experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_worker(driver)


def exit_with_parent(parent: int) -> None:
    """End this process when its parent ends, even by kill -9: an orphan would keep a core busy.

    The parent's id is compared rather than looked up, because a zombie parent still exists.
    """
    # the kernel's signal also ends a process that is stopped, or that runs machine code without releasing the interpreter
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@cache
def use_one_thread() -> None:
    """Limit BLAS, OpenMP, numba and torch to one thread for the rest of this process: sums then have one order everywhere.

    Loaded libraries are limited now; those that load later read the environment.
    """
    from threadpoolctl import threadpool_limits

    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    for module in {"torch", "numba"} & sys.modules.keys():
        sys.modules[module].set_num_threads(1)
    threadpool_limits(1)


def _values(task: RunTask) -> Mapping[str, Any]:
    experiment = find(task.experiment)
    point = read_point(experiment, task.point)
    if task.seed is None:
        return _predict(experiment, point)
    born = born_names(experiment.id)
    rng = random_stream(born.id, task.seed, born.point(experiment.problem(point)))
    return _storable(_require_mapping(experiment.run(point, rng), "run"))


def _predict(experiment: Experiment[Any], point: Any) -> dict[str, Predicted]:
    found = _require_mapping(experiment.predict(point), "predict")
    for name, item in found.items():
        if not isinstance(item, Predicted):
            raise TypeError(f"'{name}' is predicted as a {type(item).__name__}; a Predicted is needed")
        _require_numbers(plain(item.value), name)
        _require_numbers(plain(item.error), f"{name}.error")
    values = _storable({name: {"value": item.value, "error": item.error} for name, item in found.items()})
    return {name: Predicted(item["value"], float(item["error"])) for name, item in values.items()}


def _require_mapping(found: Any, method: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise TypeError(f"{method}() returned a {type(found).__name__}; a mapping of names to values is needed")
    return found


def _storable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the ledger will return them; values that cannot be stored are an error of this point."""
    values = plain(values)
    _refuse_non_finite(values)
    text = json.dumps(values, allow_nan=False)
    if len(text) > LARGEST:
        raise ValueError(f"the values take {len(text):,} characters as JSON; at most {LARGEST:,} are stored")
    stored: dict[str, Any] = json.loads(text)
    return stored


def _require_numbers(value: Any, name: str) -> None:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, list):
            _require_numbers(item, name)
        elif not isinstance(item, (int, float)):
            raise TypeError(f"'{name}' is predicted as a {type(item).__name__}; a number or numbers are needed")


def _refuse_non_finite(values: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _refuse_non_finite(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            _refuse_non_finite(dict(enumerate(value)), f"{prefix}{name}.")  # type: ignore[arg-type]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"'{prefix}{name}' is {value}")
