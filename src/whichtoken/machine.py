"""On what something was computed: the machine in a few words, and the versions that matter."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PARTS = ("numpy", "scipy", "numba", "torch", "scikit-learn")


def machine() -> str:
    """The processor, its cores and the memory."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    sizes = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    memory = f", {sizes[0] / 2**20:.0f} GiB" if sizes else ""
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores{memory}"


def part_versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of whichtoken and Python, and of those of the main packages and of `more` that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    import whichtoken

    found = {"whichtoken": whichtoken.__version__, "Python": platform.python_version()}
    for name in (*PARTS, *more):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
