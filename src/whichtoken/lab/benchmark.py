"""The parts of a benchmark file: one `Measure` per number, with ratios timed in one run.

A benchmark is a module in `benchmarks/` with a docstring and a generator `measure()` that yields `Measure`s. Its name on
the command line is its file name with dashes. A long one takes `Cases` and asks it about every case before that is run, so that
single cases can be run again: `measure(wanted)`. For the page of comparisons it also has constants, written out: `PART`, the
heading under which it stands; `QUESTION`, what a user wants to know; and, where it has peers, `WHY`: for each of them the
sentence that explains a "win", a "loss" or a result that is "even".
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import whichtoken
from whichtoken.errors import UsageError, unknown
from whichtoken.extras import is_installed, needed_by
from whichtoken.lab.record import record_folder
from whichtoken.threads import one_thread

PACKAGE = "whichtoken_benchmarks"
PEERS = ("captum", "clarabel", "cvxpy", "interpret-core", "lime", "scs", "skglm", "torchmil", "transformers")
CPU = "s of CPU time"
NOTICEABLE = 1.1  # a ratio nearer to one than this is called even where no interval can say more


@dataclass(frozen=True)
class Beside:
    """Our number and the peer's, in the same unit, on the same data with the same threads."""

    peer: str
    ours: float
    theirs: float
    unit: str  # such as "s", "accuracy" or "MB"
    more_is_better: bool = False
    interval: tuple[float, float] | None = None  # 95 %, of ours minus theirs

    @property
    def result(self) -> str:
        """A "win", a "loss", or "even": the interval holds zero or, where there is none, the ratio is within a tenth of one."""
        if self.interval is not None:
            even = self.interval[0] <= 0 <= self.interval[1]
        else:
            small, large = sorted((abs(self.ours), abs(self.theirs)))
            even = large <= NOTICEABLE * small
        if even:
            return "even"
        return "win" if (self.ours > self.theirs) == self.more_is_better else "loss"


@dataclass(frozen=True)
class Measure:
    """One number beside its target."""

    case: str  # the problem and its size
    what: str  # what the number is, with its unit
    value: float
    target: float
    at_least: bool = True  # False: the value should be at most the target
    detail: str = ""  # the raw times behind a ratio
    beside: Beside | None = None  # where the number compares us with somebody

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cpu_seconds(function: Callable[[], Any]) -> float:
    """Processor time of one call, which on one thread does not depend on the load of the machine."""
    start = time.process_time()
    function()
    return time.process_time() - start


def speed_up(
    case: str, ours: Callable[[], Any], peer: Callable[[], Any], peer_name: str, target: float, repeats: int = 3
) -> Measure:
    """How many times faster `ours` is than `peer`: median of alternating runs, so that both see the same machine."""
    ours()  # compiles and fills caches, which is not compared
    peer()
    times = [(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(repeats)]
    mine, theirs = median(t[0] for t in times), median(t[1] for t in times)
    return faster(case, mine, theirs, peer_name, target)


def faster(case: str, ours: float, theirs: float, peer: str, target: float, what: str = "") -> Measure:
    """How many times faster `ours` is, from measured seconds of processor time."""
    detail = f"{ours * 1e3:.3g} ms against {theirs * 1e3:.4g} ms"
    beside = Beside(peer, ours, theirs, CPU)
    return Measure(case, what or f"times faster than {peer}", theirs / ours, target, detail=detail, beside=beside)


def benchmark_files() -> dict[str, Path]:
    """Every benchmark by its name: beside the sources in a checkout, inside the package in an installed wheel."""
    package = Path(whichtoken.__file__).parent
    for folder in (package / "_benchmarks", package.parents[1] / "benchmarks"):
        if folder.is_dir():
            return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("[a-z]*.py"))}
    raise UsageError("this installation has no benchmarks; install the wheel or run from a checkout")


def recorded_benchmark(name: str) -> dict[str, Any] | None:
    """The last table of a benchmark on record, if it has one."""
    file = record_folder() / "benchmarks" / f"{name}.json"
    if not file.exists():
        return None
    tables: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
    return next(table for table in tables if table["name"] == name)


@dataclass
class Cases:
    """Which cases of a benchmark are wanted: those whose name has one of the texts, or all."""

    texts: Sequence[str] = ()
    every: dict[str, bool] = field(default_factory=dict)  # whether a case that was asked about is wanted

    def __call__(self, case: str) -> bool:
        return self.every.setdefault(case, not self.texts or any(text in case for text in self.texts))

    @property
    def asked(self) -> list[str]:
        """Wanted cases that were asked about so far."""
        return [case for case, wanted in self.every.items() if wanted]


def run_benchmark(name: str, wanted: Cases | None = None) -> Iterator[Measure]:
    """Measure one benchmark, or some cases of it, number by number, on one thread unless it asks for more."""
    wanted = wanted or Cases()
    files = benchmark_files()
    if name not in files:
        raise unknown("benchmark", name, files)
    package = ModuleType(PACKAGE)  # so that benchmarks can import from each other, wherever their folder lies
    package.__path__ = [str(files[name].parent)]
    sys.modules[PACKAGE] = package
    with needed_by(f"the benchmark {name}"), _single_thread():
        measure = importlib.import_module(f"{PACKAGE}.{files[name].stem}").measure
        by_case = "wanted" in signature(measure).parameters
        if wanted.texts and not by_case:
            raise UsageError(f"the benchmark {name} has no cases that can be run alone; leave --case out")
        yield from measure(wanted) if by_case else measure()
    if wanted.texts and not wanted.asked:
        raise UsageError(f"no case of {name} has {' or '.join(wanted.texts)} in its name: {'; '.join(wanted.every)}")


@contextmanager
def _single_thread() -> Iterator[None]:
    """Limit all libraries to one thread, for ours and for the peer."""
    libraries = [importlib.import_module(name) for name in ("numba", "torch") if is_installed(name)]
    before = [library.get_num_threads() for library in libraries]
    try:
        with one_thread():
            for library in libraries:
                library.set_num_threads(1)
            yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)
