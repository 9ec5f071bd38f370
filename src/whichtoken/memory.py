"""Whether something fits, before it is allocated."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that can be had without swapping, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit, in one sentence with both sizes."""
    there = available_memory()
    if needed > there:
        raise ValueError(f"{what} needs {needed / 1e9:.3g} GB, {there / 1e9:.3g} GB are free; {advice}")
