"""Showing: figures, displays and the HTML report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.report.displays.attention import AttentionDisplay
    from whichtoken.report.displays.calibration import ProbabilityDisplay
    from whichtoken.report.displays.importance import ImportanceDisplay
    from whichtoken.report.displays.margin import MarginDisplay
    from whichtoken.report.displays.plan import LearningCurvePlanDisplay
    from whichtoken.report.displays.trajectory import TrajectoryDisplay
    from whichtoken.report.html import write_report

_HOME = {
    "AttentionDisplay": "displays.attention",
    "ImportanceDisplay": "displays.importance",
    "LearningCurvePlanDisplay": "displays.plan",
    "MarginDisplay": "displays.margin",
    "ProbabilityDisplay": "displays.calibration",
    "TrajectoryDisplay": "displays.trajectory",
    "write_report": "html",
}

__all__ = [
    "AttentionDisplay",
    "ImportanceDisplay",
    "LearningCurvePlanDisplay",
    "MarginDisplay",
    "ProbabilityDisplay",
    "TrajectoryDisplay",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # imported when asked for: neither templates nor estimators load when claims are listed
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
