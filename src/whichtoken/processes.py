"""How this package starts Python: never with the working folder, which holds a user's data, on the module path."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from whichtoken.working_folder import SAFE_PATH

_lock = threading.Lock()
_inside = 0
_restore = ExitStack()


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
def restored_environment(*names: str) -> Iterator[None]:
    """A context that leaves these environment variables as it found them."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def safe_children() -> Iterator[None]:
    """A context in which processes that a library starts do not look for modules in the working folder either.

    They get this from the environment of this process, which is restored when the last thread leaves the context.
    """
    global _inside
    with _lock:
        if not _inside:
            _restore.enter_context(restored_environment(SAFE_PATH))
            os.environ[SAFE_PATH] = "1"
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _restore.close()
