"""The machine that computes: its processor, whether something fits into its memory, and the versions of the main packages."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be used without swapping: of the machine or of the container, whichever has fewer."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_available_in_containers()])


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit, in one sentence with both sizes."""
    there = available_memory()
    if needed > there:
        raise ValueError(f"{what} needs {needed / 1e9:.3g} GB, {there / 1e9:.3g} GB are free; {advice}")


def _available_in_containers() -> Iterator[int]:
    """What each control group around this process, of version 1 or 2, still allows: a parent's limit counts as well."""
    try:
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in memberships:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            root, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        limit, usage, cache = names
        # a container may see only the root, which is then its own
        inside = PurePosixPath(place.lstrip("/"))
        for group in (root / part for part in (inside, *inside.parents)):
            try:
                # "max" is not a number: no limit
                most, used = (int((group / name).read_text()) for name in (limit, usage))
                pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
                # the cache is given back when memory is short
                kept = next((int(pair[1]) for pair in pairs if pair[0] == cache), 0)
            except (OSError, ValueError):
                continue
            yield max(0, most - used + kept)


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
