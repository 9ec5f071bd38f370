"""What a benchmark file is made of: one `Measure` per number, ratios timed in one run.

A benchmark is a module in `benchmarks/` with a docstring and a generator `measure()` that yields `Measure`s. Its name on
the command line is its file name with dashes.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import whichtoken
from whichtoken.errors import UsageError, unknown

PACKAGE = "whichtoken_benchmarks"


@dataclass(frozen=True)
class Measure:
    """One number beside its target."""

    case: str  # the problem and its size
    what: str  # what the number is, with its unit
    value: float
    target: float
    at_least: bool = True  # False: the value should be at most the target
    detail: str = ""  # the raw times behind a ratio

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def speed_up(
    case: str, ours: Callable[[], Any], peer: Callable[[], Any], peer_name: str, target: float, repeats: int = 3
) -> Measure:
    """How many times faster `ours` is than `peer`: median of alternating runs, so that both see the same machine."""
    ours()  # compilation and caches are not what is compared
    peer()
    times = [(seconds(ours), seconds(peer)) for _ in range(repeats)]
    mine, theirs = median(t[0] for t in times), median(t[1] for t in times)
    detail = f"{mine * 1e3:.3g} ms against {theirs * 1e3:.4g} ms"
    return Measure(case, f"times faster than {peer_name}", theirs / mine, target, detail=detail)


def benchmark_files() -> dict[str, Path]:
    """Every benchmark by its name: beside the sources in a checkout, inside the package in an installed wheel."""
    package = Path(whichtoken.__file__).parent
    for folder in (package / "_benchmarks", package.parents[1] / "benchmarks"):
        if folder.is_dir():
            return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("[a-z]*.py"))}
    raise UsageError("this installation has no benchmarks; install the wheel or run from a checkout")


def run_benchmark(name: str) -> Iterator[Measure]:
    """Measure one benchmark, number by number."""
    files = benchmark_files()
    if name not in files:
        raise unknown("benchmark", name, files)
    package = ModuleType(PACKAGE)  # so that benchmarks can import from each other, wherever their folder lies
    package.__path__ = [str(files[name].parent)]
    sys.modules[PACKAGE] = package
    try:
        yield from importlib.import_module(f"{PACKAGE}.{files[name].stem}").measure()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name} needs {error.name}; install the peers with: pip install 'whichtoken[bench]'"
        ) from error
