"""Rooms that load their parts when asked for: torch, scikit-learn and compiled kernels take seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from whichtoken.extras import needed_by


def on_demand(room: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported from their modules when they are used.

    Parameters
    ----------
    room : name of the package.
    homes : the module of each name, relative to the package.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        with needed_by(f"{room}.{name}"):
            return getattr(import_module(f"{room}.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *homes})

    return load, names
