"""Every example runs as a reader would run it, and says something."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    done = subprocess.run([sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr


def test_a_claim_of_ones_own_is_found_and_agrees(whichtoken, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(EXAMPLES / "claims"))
    done = whichtoken("reproduce", "mine/attended-tokens")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == 3
