"""How this package starts Python: never with the working folder, which holds a user's data, on the module path."""

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
    """The command that runs a module in a new process, as `python -m` does; to be used with `python_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_file_command(path: str) -> list[str]:
    """The command that runs a file in a new process, without importing this package; use it with `python_environment`."""
    return [sys.executable, "-P", path]


def python_environment(**more: str) -> dict[str, str]:
    """The environment for such a process, inherited by the processes that it starts itself."""
    return {**os.environ, **more, SAFE_PATH: "1"}


@contextmanager
def safe_children() -> Iterator[None]:
    """A context in which processes that a library starts do not look for modules in the working folder either.

    They get this from the environment of this process, which is restored when the last thread leaves the context.
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
