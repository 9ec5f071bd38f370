"""What every test may ask for: toy experiments, and the command line run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# Test workers share the cores: with more threads each, small matrix products run many times slower. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run and every machine; those that once failed stay as explicit `@example`s.
hypothesis.settings.register_profile("whichtoken", derandomize=True, deadline=None)
hypothesis.settings.load_profile("whichtoken")

TOYS = Path(__file__).parent / "toys"


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Add the toy experiments to those of the package, in this process and in workers; return the trace of their runs."""
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "toy.log"))
    return tmp_path / "toy.log"


@pytest.fixture
def whichtoken(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run the command in an empty folder: `whichtoken("list").stdout`."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "whichtoken", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)

    return run
