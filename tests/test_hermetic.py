"""The suite sees nothing but itself: not the working copy, nor a home folder, nor whose environment it runs in."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_each_test_has_a_place_of_its_own(tmp_path):
    assert Path.cwd() == tmp_path
    assert os.listdir(Path.home()) == []
    assert [name for name in os.environ if name.startswith("WHICHTOKEN_")] == ["WHICHTOKEN_EXPERIMENTS"]
    assert not [name for name in os.environ if name.startswith("XDG_")]


@pytest.mark.process
def test_polluted_working_copy_changes_nothing(tmp_path):
    """Results, rubbish and settings where the tests are started: those that would see them pass all the same."""
    (tmp_path / "whichtoken-output" / "report").mkdir(parents=True)
    (tmp_path / "whichtoken-output" / "whichtoken-results.sqlite").write_text("rubbish")
    with closing(sqlite3.connect(tmp_path / "whichtoken-results.sqlite")) as other:
        other.execute("PRAGMA user_version=1")
    (tmp_path / "numpy.py").write_text("raise ImportError('a file of the working copy')")
    settings = {
        "WHICHTOKEN_EXPERIMENTS": "rubbish",
        "WHICHTOKEN_DATA": "rubbish",
        "WHICHTOKEN_ODD": "1",
        "HOME": "/odd",
    }
    chosen = ["test_hermetic.py::test_each_test_has_a_place_of_its_own", "app/test_cli.py"]
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
    assert commands == ["make demo", "make test"]
    start = script.index("make demo")
    assert script[start:] == [*commands, ".venv/bin/whichtoken reproduce", "make test-rest"]
    assert "set -euo pipefail" in script


def selection(target):
    """What a target of the Makefile gives to pytest as -m."""
    makefile = (TESTS.parent / "Makefile").read_text()
    [kinds] = re.findall(r"^LONG := (.+)$", makefile, re.MULTILINE)
    [chosen] = re.findall(rf'^{target}: .*\n(?:\t.*\n)*?\t.*\$\(BIN\)/\$\(PYTEST\) -m "(.*?)"', makefile, re.MULTILINE)
    return chosen.replace("$(LONG)", kinds)


def test_every_test_is_in_one_of_the_two_circles(pytestconfig):
    """Whatever markers it has: `make test` runs it or `make test-rest` does, and never both."""
    names = [line.split(":")[0] for line in pytestconfig.getini("markers") if line.split(":")[0].isalpha()]
    kinds = [name for name in names if re.search(rf"\b{name}\b", selection("test"))]
    assert {"slow", "process", "browser", "docs", "transformers", "smoke"} == set(kinds)
    for chosen in product([False, True], repeat=len(kinds)):
        marked = dict(zip(kinds, chosen, strict=True))
        first, second = (eval(selection(target), {}, marked) for target in ("test", "test-rest"))
        assert first != second
        assert first == (marked["smoke"] or not any(chosen))
