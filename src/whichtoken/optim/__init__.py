"""Torch optimisers, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

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

__getattr__, __dir__ = on_demand(__name__, _HOME)
