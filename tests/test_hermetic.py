"""The suite sees nothing but itself: not the working copy, nor a home folder, nor whose environment it runs in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_each_test_has_a_place_of_its_own(tmp_path):
    assert Path.cwd() == tmp_path
    assert os.listdir(Path.home()) == []
    assert [name for name in os.environ if name.startswith("WHICHTOKEN_")] == ["WHICHTOKEN_EXPERIMENTS"]
    assert not [name for name in os.environ if name.startswith("XDG_")]


def test_polluted_working_copy_changes_nothing(tmp_path):
    """Results, rubbish and settings where the tests are started: those that would see them pass all the same."""
    (tmp_path / "whichtoken-output" / "report").mkdir(parents=True)
    (tmp_path / "whichtoken-output" / "whichtoken-results.sqlite").write_text("rubbish")
    shutil.copy(TESTS / "lab" / "ledgers" / "schema-1.sqlite", tmp_path / "whichtoken-results.sqlite")
    (tmp_path / "numpy.py").write_text("raise ImportError('a file of the working copy')")
    settings = {
        "WHICHTOKEN_EXPERIMENTS": "rubbish",
        "WHICHTOKEN_DATA": "rubbish",
        "WHICHTOKEN_ODD": "1",
        "HOME": "/odd",
    }
    chosen = ["test_hermetic.py::test_each_test_has_a_place_of_its_own", "test_cli.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}"]
    command += ["-c", TESTS.parent / "pyproject.toml", "-k", "place or light or (mistakes and report)"]
    command += [TESTS / name for name in chosen]
    environment = {**os.environ, **settings, "PYTHONSAFEPATH": "1"}
    environment.pop("TESTS_REAL_DATA")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]


def test_ci_runs_the_commands_of_the_readme_in_its_order():
    readme = (TESTS.parent / "README.md").read_text()
    first = readme.split("```")[1]
    commands = [line.split("#")[0].strip() for line in first.strip().splitlines()]
    script = (TESTS.parent / ".ci" / "run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == commands == ["make demo", "make test"]
    assert "set -euo pipefail" in script
    assert script[-1] == "make test", "the last lines are those of pytest"
