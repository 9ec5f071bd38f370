"""Every example runs as a reader would run it, says something, and ends in a figure."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))  # with files or options of their own
GALLERY = sorted(EXAMPLES.glob("*/plot_*.py"))
# a cheap one for each kind of reader, and of those without a figure
SMOKE = {"plot_groups_of_columns", "plot_structure_aware", "plot_where_training_ends", "imdb_paper_scale"}
RUNNER = """
import runpy, sys
import matplotlib
matplotlib.use("svg")
import whichtoken.progress
whichtoken.progress.quiet = True  # how often progress is told depends on the clock
runpy.run_path(sys.argv[1], run_name="__main__")
import matplotlib.pyplot as plt
assert plt.get_fignums(), "no figure"
plt.gcf().savefig("figure.svg")
"""


def run(script, folder, *command):
    command = [sys.executable, "-W", "error", *command, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr
    return done.stdout


def smoke_or_not(script):
    return pytest.param(script, id=script.stem, marks=pytest.mark.smoke if script.stem in SMOKE else ())


@pytest.mark.parametrize("script", [smoke_or_not(script) for script in SCRIPTS])
def test_script_runs(script, tmp_path):
    run(script, tmp_path)


@pytest.mark.parametrize("script", [smoke_or_not(script) for script in GALLERY])
def test_example_ends_in_a_figure(script, tmp_path):
    said = run(script, tmp_path, "-c", RUNNER)
    if "pip install" in said:
        assert said.count("\n") == 1  # its data are absent: one sentence, and a good end
        pytest.skip(said)
    assert (tmp_path / "figure.svg").stat().st_size > 5000


@pytest.mark.smoke
def test_every_kind_of_reader_has_five_examples_and_a_smoke_test():
    readers = {script.parent.name for script in GALLERY}
    assert {"researchers", "practitioners", "engineers"} <= readers
    assert {script.parent.name for script in GALLERY if script.stem in SMOKE} == readers
    for reader in readers:
        assert len([script for script in GALLERY if script.parent.name == reader]) >= 5


def test_an_example_without_its_data_says_so_and_ends_well(tmp_path):
    script = EXAMPLES / "practitioners" / "plot_molecules_as_bags.py"
    absent = "import importlib.metadata as m, runpy, sys; m.distributions = lambda **_: []; runpy.run_path(sys.argv[1])"
    assert "pip install" in run(script, tmp_path, "-c", absent)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("claim", "states"), [("mine/attended-tokens", "3 agree"), ("guest/benign-overfitting", "4 agree")]
)
def test_a_claim_of_ones_own_is_found_and_agrees(claim, states, whichtoken, no_workers, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(EXAMPLES / "claims"))
    done = whichtoken("reproduce", claim)
    assert done.returncode == 0, done.stderr
    assert states in done.stdout
