"""Showing: figures, displays and the HTML report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

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

__getattr__, __dir__ = on_demand(__name__, _HOME)
