"""What every test may ask for: a place of its own, toy experiments, and the command line run as a user would.

No test sees what lies in the working copy, in the home folder or in the environment of whoever starts the tests.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from browser import chromium, visit  # noqa: F401  fixtures of the tests that look at pages

TOYS = Path(__file__).parent / "toys"
PACKAGE = Path(__file__).parents[1] / "src" / "whichtoken"
ENVIRONMENT = pytest.StashKey[dict[str, str]]()
SET_BY_LIBRARIES = {
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
}  # pytest, and scikit-learn when imported

# Recorded rows come out again with the threads and the instructions that the workers of a run use. Set before numpy loads, so
# another process says what this release of numpy calls them; the workers of a parallel run inherit the answer.
if "PYTEST_XDIST_WORKER" not in os.environ:
    code = "import json; from whichtoken.lab.worker import worker_environment; print(json.dumps(worker_environment()))"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    chosen = json.loads(asked.stdout)
    for name in {"OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"} & chosen.keys():
        os.environ.setdefault(name, chosen[name])

# Folders that are dear to fill stay where they are, whatever home a test has: fonts, and compiled kernels where they do
# not lie beside the sources.
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("MPLCONFIGDIR", str(CACHES / "matplotlib"))
if not os.access(PACKAGE, os.W_OK):
    os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHES / "numba"))

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
    monkeypatch.setenv("COLUMNS", "200")  # tables that a test reads are not folded
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often progress is told depends on the clock."""
    monkeypatch.setattr("whichtoken.progress.LINE_SECONDS", 3600.0)


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
def whichtoken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run the command in this process, in the folder of the test: `whichtoken("list").stdout`.

    A process of its own takes a second or more; `whichtoken_process` is for the tests that are about one.
    """
    from whichtoken.app.cli import main as cli

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["whichtoken", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return subprocess.CompletedProcess(command, end.value.code or 0, *capsys.readouterr())  # type: ignore[arg-type]

    return run


@pytest.fixture
def whichtoken_process():  # type: ignore[no-untyped-def]
    """Run the command as a process of its own, in the folder of the test."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "whichtoken", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run claims in this process, for tests that are not about engines."""
    from whichtoken.lab.worker import work

    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """Collect what distributed forgets to close after a connection that failed, before it speaks up in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
