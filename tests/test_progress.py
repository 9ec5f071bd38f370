"""The bar: on a terminal alone, with what was done and what the caller says."""

import io

import pytest
from rich.console import Console

from whichtoken.lab.progress import progress_bar
from whichtoken.progress import terminal_bar


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


def test_failed_points_are_counted(terminal):
    with progress_bar(4) as tick:
        for failed in (True, False, True):
            tick("theory/claim", failed)
    assert "theory/claim" in terminal.getvalue()
    assert "3/4 2 failed" in terminal.getvalue()


@pytest.mark.parametrize("total", [0, 5])
def test_nobody_sees_a_bar_elsewhere(total, capsys):
    with terminal_bar(total, "epoch", "") as update:
        update(advance=1)
    assert capsys.readouterr() == ("", "")
