"""Loops that fit a model: plans, checkpoints, schedules, one trainer per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.training.cls_training import start_cls, train_cls
    from whichtoken.training.convex_head import fit_head
    from whichtoken.training.loop import Safeguards
    from whichtoken.training.plan import TrainingPlan
    from whichtoken.training.structure_aware_descent import StructureAwareDescent
    from whichtoken.training.two_layer import train_two_layer
    from whichtoken.training.two_step import fit_attention, two_step_query

_HOME = {
    "Safeguards": "loop",
    "StructureAwareDescent": "structure_aware_descent",
    "TrainingPlan": "plan",
    "fit_attention": "two_step",
    "fit_head": "convex_head",
    "start_cls": "cls_training",
    "train_cls": "cls_training",
    "train_two_layer": "two_layer",
    "two_step_query": "two_step",
}

__all__ = [
    "Safeguards",
    "StructureAwareDescent",
    "TrainingPlan",
    "fit_attention",
    "fit_head",
    "start_cls",
    "train_cls",
    "train_two_layer",
    "two_step_query",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
