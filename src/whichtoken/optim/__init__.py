"""Torch optimisers, one per file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.optim.mirror_descent import MirrorDescent
    from whichtoken.optim.step_sizes import matched_lr
    from whichtoken.optim.structure_aware import StructureAware

_HOME = {
    "MirrorDescent": "mirror_descent",
    "StructureAware": "structure_aware",
    "matched_lr": "step_sizes",
}

__all__ = [
    "MirrorDescent",
    "StructureAware",
    "matched_lr",
]


def __getattr__(name: str) -> Any:
    # imported when asked for: torch takes seconds to load
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
