"""Pictures in scikit-learn's manner: drawn where they are told to, with axes in words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from whichtoken.app import LearningCurvePlanDisplay


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    pyplot.close("all")


def drawing(name: str) -> Any:
    """A function of the axes for each kind of display."""
    return {
        "plan": lambda ax: LearningCurvePlanDisplay(
            {"attention": [(10, 0.3), (20, 0.2)]}, samples=10, target=0.1, floor=0.05, measured=(8, 0.3, 0.2, 0.4)
        ).plot(ax),
    }[name]


@pytest.mark.parametrize("name", ["plan"])
def test_draws_where_it_is_told_to_and_can_be_saved(name: str, tmp_path: Any) -> None:
    draw = drawing(name)
    axes = Figure().subplots()
    given = draw(axes)
    assert given.ax_ is axes
    assert given.figure_ is axes.figure
    assert given.ax_.get_xlabel()
    assert given.ax_.get_ylabel()
    fresh = draw(None)
    assert fresh.figure_ is not given.figure_
    assert fresh.plot(axes) is fresh
    fresh.figure_.savefig(tmp_path / "picture.png")


def test_matplotlib_loads_when_something_is_drawn() -> None:
    code = "import sys, whichtoken.app as r; r.LearningCurvePlanDisplay; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
