"""Shows and stores the table of injected faults at the end of a session."""

from __future__ import annotations

import pytest
import tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tally.LINES:
        terminalreporter.section("injected faults")
        terminalreporter.write_line(tally.as_text(tally.LINES))


def pytest_sessionfinish() -> None:
    if tally.LINES:
        tally.write(tally.LINES)
