"""What every test may ask for: a place of its own, toy experiments, and the command line run as a user would.

No test sees what lies in the working copy, in the home folder or in the environment of whoever starts the tests.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from browser import chromium, visit  # noqa: F401  fixtures of the tests that look at pages
from whichtoken.kernel_cache import save_kernels_in_turn

TOYS = Path(__file__).parent / "toys"
PACKAGE = Path(__file__).parents[1] / "src" / "whichtoken"

# Test workers share the cores: with more threads each, small matrix products run many times slower. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Folders that are dear to fill stay where they are, whatever home a test has: fonts, and compiled kernels where they do
# not lie beside the sources.
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("MPLCONFIGDIR", str(CACHES / "matplotlib"))
if not os.access(PACKAGE, os.W_OK):
    os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHES / "numba"))

save_kernels_in_turn()  # test workers compile the same kernels at the same moments

# Real data are for the tests that ask for them, under another name that the workers of a parallel run inherit.
os.environ.setdefault("TESTS_REAL_DATA", os.environ.get("WHICHTOKEN_DATA", ""))
for name in [name for name in os.environ if name.startswith("WHICHTOKEN_")]:
    del os.environ[name]

# The same examples on every run and every machine; those that once failed stay as explicit `@example`s.
hypothesis.settings.register_profile("whichtoken", derandomize=True, deadline=None)
hypothesis.settings.load_profile("whichtoken")


@pytest.fixture(scope="session", autouse=True)
def _empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that several tests share work in an empty folder too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("session"))
        yield


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the test an empty working folder and an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Add the toy experiments to those of the package, in this process and in workers; return the trace of their runs."""
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "toy.log"))
    return tmp_path / "toy.log"


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that WHICHTOKEN_DATA named when the tests were started; the test is skipped where it named none."""
    folder = os.environ["TESTS_REAL_DATA"]
    if not folder or not Path(folder).is_dir():
        pytest.skip("WHICHTOKEN_DATA names no folder")
    monkeypatch.setenv("WHICHTOKEN_DATA", folder)
    return Path(folder)


@pytest.fixture
def whichtoken(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run the command in an empty folder: `whichtoken("list").stdout`."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "whichtoken", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """Collect what distributed forgets to close after a connection that failed, before it speaks up in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
