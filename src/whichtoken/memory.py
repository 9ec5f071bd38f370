"""Whether something fits into memory, before it is allocated."""

from __future__ import annotations

from collections.abc import Iterator
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
