"""Whether something fits, before it is allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def available_memory() -> int:
    """Bytes that can be had without swapping; all of them where the system does not say, so that nothing is refused."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # only POSIX systems have it, and not all of them know these names
        return sys.maxsize


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit, in one sentence with both sizes."""
    there = available_memory()
    if needed > there:
        raise ValueError(f"{what} needs {needed / 1e9:.3g} GB, {there / 1e9:.3g} GB are free; {advice}")
