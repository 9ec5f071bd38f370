"""How this package starts Python: never with the working folder, which holds a user's data, on the path of modules."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from whichtoken.working_folder import SAFE_PATH

_lock = threading.Lock()
_inside = 0
_before: str | None = None


def python_command(module: str, *arguments: str) -> list[str]:
    """What runs a module in a new process, as `python -m` does; to be used with `python_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_file_command(path: str) -> list[str]:
    """What runs a file in a new process, without importing this package; to be used with `python_environment`."""
    return [sys.executable, "-P", path]


def python_environment(**more: str) -> dict[str, str]:
    """The environment of a process of ours, which the processes that it starts itself inherit."""
    return {**os.environ, **more, SAFE_PATH: "1"}


@contextmanager
def safe_children() -> Iterator[None]:
    """Processes that a library starts while anybody is inside do not look for modules in the working folder either.

    The environment of this process is the only way to tell them. It comes back as it was when the last one leaves.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = os.environ.get(SAFE_PATH)
            os.environ[SAFE_PATH] = "1"
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                if _before is None:
                    os.environ.pop(SAFE_PATH, None)
                else:
                    os.environ[SAFE_PATH] = _before
