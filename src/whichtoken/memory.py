"""Whether something fits, before it is allocated."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be had without swapping: of the machine, or of the container, whichever are fewer.

    All of them where the system does not say, so that nothing is refused.
    """
    return min([_free_on_the_machine(), *_free_in_containers()])


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit, in one sentence with both sizes."""
    there = available_memory()
    if needed > there:
        raise ValueError(f"{what} needs {needed / 1e9:.3g} GB, {there / 1e9:.3g} GB are free; {advice}")


def _free_on_the_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # only POSIX systems have it, and not all of them know these names
        return sys.maxsize


def _free_in_containers() -> Iterator[int]:
    """What each control group around this process, of version 1 or 2, still allows: a parent's limit counts as well."""
    try:
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if not controllers:
            yield from _free_in(CGROUPS, place, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _free_in(CGROUPS / "memory", place, *names)


def _free_in(root: Path, place: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """Of the group at `place` below `root` and of all above it; a container may see only the root, which is then its own."""
    inside = PurePosixPath(place.lstrip("/"))
    for group in (root / part for part in (inside, *inside.parents)):
        try:
            most, used = (int((group / name).read_text()) for name in (limit, usage))  # "max" is no number: no limit
            pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            kept = next((int(pair[1]) for pair in pairs if pair[0] == cache), 0)  # given back when memory is short
        except (OSError, ValueError):
            continue
        yield max(0, most - used + kept)
