"""Every example runs as a reader would run it, says something, and ends in a figure.

A third of them runs each day, in turn; `make test-all` runs all of them (TESTS_EXAMPLES=all).
"""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))  # with files or options of their own
GALLERY = sorted(EXAMPLES.glob("*/plot_*.py"))
THIRDS = 3
ALL = os.environ.get("TESTS_EXAMPLES") == "all"
RUNNER = """
import runpy, sys
import matplotlib
matplotlib.use("svg")
runpy.run_path(sys.argv[1], run_name="__main__")
import matplotlib.pyplot as plt
assert plt.get_fignums(), "no figure"
plt.gcf().savefig("figure.svg")
"""


def in_turn(script):
    """Whether today is the day of this example."""
    today = datetime.now(UTC).date().toordinal()
    return GALLERY.index(script) % THIRDS == today % THIRDS


def run(script, folder, *command):
    command = [sys.executable, "-W", "error", *command, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    run(script, tmp_path)


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_example_ends_in_a_figure(script, tmp_path):
    if not (ALL or in_turn(script)):
        pytest.skip("another day's turn; make test-all runs every example")
    said = run(script, tmp_path, "-c", RUNNER)
    if "pip install" in said:
        assert said.count("\n") == 1  # its data are absent: one sentence, and a good end
        pytest.skip(said)
    assert (tmp_path / "figure.svg").stat().st_size > 5000


def test_every_day_runs_a_third_and_every_kind_of_user_has_five():
    assert len(GALLERY) // THIRDS <= sum(map(in_turn, GALLERY)) <= len(GALLERY) // THIRDS + 1
    for user in ("researchers", "practitioners", "engineers"):
        assert len([script for script in GALLERY if script.parent.name == user]) >= 5


def test_every_example_runs_on_demand():
    """`make test-all` names the variable that is read here, and none that the hermetic tests take away."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import conftest, test_examples; print(test_examples.ALL)"
    [named] = re.findall(r"(\w+=all) \$\(MAKE\) test$", (EXAMPLES.parent / "Makefile").read_text(), re.MULTILINE)
    environment = {**os.environ, named.split("=")[0]: "all"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_an_example_without_its_data_says_so_and_ends_well(tmp_path):
    script = EXAMPLES / "practitioners" / "plot_molecules_as_bags.py"
    absent = "import importlib.metadata as m, runpy, sys; m.distributions = lambda **_: []; runpy.run_path(sys.argv[1])"
    assert "pip install" in run(script, tmp_path, "-c", absent)


def test_a_claim_of_ones_own_is_found_and_agrees(whichtoken, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(EXAMPLES / "claims"))
    done = whichtoken("reproduce", "mine/attended-tokens")
    assert done.returncode == 0, done.stderr
    assert "3 agree" in done.stdout
