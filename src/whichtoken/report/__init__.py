"""Showing: figures and the HTML report."""

from whichtoken.report.html import write_report

__all__ = ["write_report"]
