"""Bars on a terminal, lines elsewhere: what was done and what the caller says."""

import io
import time

import pytest
from rich.console import Console

from whichtoken.lab.reproduce import theory_bars
from whichtoken.progress import progress_lines, terminal_bar


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal that keeps what is written to it."""
    written = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console",
        lambda stderr: Console(file=written, force_terminal=stderr, width=100, color_system=None),
    )
    return written


def test_a_terminal_sees_what_was_done(terminal):
    with terminal_bar(3, "epoch", "{task.fields[text]}", text="") as update:
        update(completed=2, text="loss 0.25")
    assert "epoch" in terminal.getvalue()
    assert "2/3 loss 0.25" in terminal.getvalue()


def test_each_theory_has_a_bar_with_its_failures(terminal):
    with theory_bars(["one/claim"] * 3 + ["two/claim"]) as tick:
        for failed in (True, False, True):
            tick("one/claim", failed)
    for text in ("one claim", "3/3 2 failed", "two", "0/1 0 failed", "all claims", "3/4 2 failed"):
        assert text in terminal.getvalue()


def test_one_theory_needs_one_bar(terminal):
    with theory_bars(["one/claim"] * 2) as tick:
        tick("one/claim", False)
    assert "all claims" not in terminal.getvalue()
    assert "1/2 0 failed" in terminal.getvalue()


@pytest.mark.parametrize("total", [0, 5])
def test_nobody_sees_a_bar_elsewhere(total, capsys):
    with terminal_bar(total, "epoch", "") as update:
        update(advance=1)
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def _often(monkeypatch):
    monkeypatch.setattr("whichtoken.progress.LINE_SECONDS", 0.01)


@pytest.mark.usefixtures("_often")
def test_a_pipe_gets_lines_while_one_point_takes_long(capsys):
    """Nothing ticks in between: the lines come from a clock of their own."""
    with theory_bars(["one/claim"] * 3) as tick:
        tick("one/claim", True)
        seen, end = "", time.monotonic() + 30
        while "1 of 3 points, 1 failed; one/claim" not in seen and time.monotonic() < end:
            seen += capsys.readouterr().err
    assert "1 of 3 points, 1 failed; one/claim" in seen


@pytest.mark.usefixtures("_often")
def test_a_closed_stream_ends_no_computation(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    with progress_lines(lambda: "working"):
        time.sleep(0.05)


@pytest.mark.usefixtures("_often")
def test_quiet_means_no_progress(capsys, monkeypatch):
    monkeypatch.setattr("whichtoken.display.terminal.quiet", True)
    with theory_bars(["one/claim"]):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")
