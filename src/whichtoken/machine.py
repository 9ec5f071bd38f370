"""The machine that computed something, in a few words, and the versions of the packages that matter."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PARTS = ("numpy", "scipy", "numba", "torch", "scikit-learn")


def machine() -> str:
    """The processor, its cores and the memory."""
    import psutil

    name = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{name}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def part_versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of whichtoken and Python, and of those of the main packages and of `more` that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    import whichtoken

    found = {"whichtoken": whichtoken.__version__, "Python": platform.python_version()}
    for name in (*PARTS, *more):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
