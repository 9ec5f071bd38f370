"""How it moves: torch optimisers, compiled descents and flows, one per file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.optim.cls_training import start_cls, train_cls
    from whichtoken.optim.mirror_descent import MirrorDescent
    from whichtoken.optim.structure_aware import StructureAware
    from whichtoken.optim.training_loop import Safeguards
    from whichtoken.optim.training_plan import TrainingPlan
    from whichtoken.optim.two_layer_training import train_two_layer

_HOME = {
    "MirrorDescent": "mirror_descent",
    "Safeguards": "training_loop",
    "StructureAware": "structure_aware",
    "TrainingPlan": "training_plan",
    "start_cls": "cls_training",
    "train_cls": "cls_training",
    "train_two_layer": "two_layer_training",
}

__all__ = [
    "MirrorDescent",
    "Safeguards",
    "StructureAware",
    "TrainingPlan",
    "start_cls",
    "train_cls",
    "train_two_layer",
]


def __getattr__(name: str) -> Any:
    # imported when asked for, because torch takes seconds and the compiled descents do without it
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
