"""Showing: figures and the HTML report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.report.html import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":  # the templates' engine loads when a report is written, not when claims are listed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from whichtoken.report.html import write_report

    return write_report
