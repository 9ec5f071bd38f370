"""Compiled kernels find a place where neither the package nor a home folder can be written."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numba  # noqa: F401
import pytest

from whichtoken.kernel_cache import ensure_kernel_cache, seconds_without_compiling


@pytest.fixture
def writable(monkeypatch, tmp_path):
    """The folders that can be written; the package's own cannot."""
    folders = set()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) in folders)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys.modules["numba"].config, "CACHE_DIR", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folders


def test_home_is_enough(writable, tmp_path):
    writable.add(str(tmp_path / "cache" / "numba"))
    ensure_kernel_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ


@pytest.mark.parametrize("can_be_written", [True, False])
def test_a_folder_that_the_user_names_is_taken_if_it_can_be_written(writable, tmp_path, monkeypatch, can_be_written):
    named = str(tmp_path / "named")
    monkeypatch.setenv("NUMBA_CACHE_DIR", named)
    if can_be_written:
        writable.add(named)
    ensure_kernel_cache()
    assert (os.environ["NUMBA_CACHE_DIR"] == named) == can_be_written
    assert os.path.isdir(os.environ["NUMBA_CACHE_DIR"])


def test_a_cache_folder_of_someone_else_is_not_taken(writable, tmp_path):
    (tmp_path / "cache" / "numba").mkdir(parents=True)
    ensure_kernel_cache()
    assert os.environ["NUMBA_CACHE_DIR"].startswith(str(tmp_path / "whichtoken-kernels-"))


def test_where_nothing_can_be_written_kernels_are_refused_in_one_line_and_the_rest_works():
    program = """
import os, sys, tempfile
os.access = lambda path, mode: False
def nowhere(*_, **__):
    raise FileNotFoundError(2, "No usable temporary directory found")
tempfile.mkdtemp = tempfile.TemporaryFile = tempfile.NamedTemporaryFile = nowhere
import whichtoken.app.cli.main
sys.argv = ["whichtoken", *sys.argv[1:]]
whichtoken.app.cli.main.main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    plan = "plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 100 --samples 400"
    for line, status, errors in (("--version", 0, 0), (plan, 2, 1)):
        command = [sys.executable, "-c", program, *line.split()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (status, errors), done.stderr
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in done.stderr


def test_without_a_home_a_private_folder_is_made_and_removed(tmp_path):
    (tmp_path / "file").touch()  # no folder can be made below it
    program = """
import os
os.access = lambda path, mode: False
import whichtoken
print(os.environ["NUMBA_CACHE_DIR"], os.path.isdir(os.environ["NUMBA_CACHE_DIR"]))
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    folder, there = done.stdout.split()
    assert (there, Path(folder).parent, Path(folder).exists()) == ("True", tmp_path, False)


SAVING = """
import sys, time
if sys.argv[2] == "before":
    import numba
import whichtoken
from numba.core.caching import IndexDataCacheFile

read = IndexDataCacheFile._load_index
IndexDataCacheFile._load_index = lambda self: (read(self), time.sleep(0.3))[0]  # another process comes in between
from kernel import twice
twice(int(sys.argv[1]) if sys.argv[1] != "x" else 1.5)
"""


@pytest.fixture
def kernel(tmp_path):
    """A kernel that nobody has compiled: where and with what environment a process finds it."""
    (tmp_path / "kernel.py").write_text(
        "from numba import njit\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    return {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)}}


@pytest.mark.process
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_programs_that_import_whichtoken_leave_a_sound_cache(kernel, tmp_path, loaded):
    """Two signatures of one kernel, saved at the same moment, must not get one file."""
    both = [subprocess.Popen([sys.executable, "-c", SAVING, kind, loaded], **kernel) for kind in ("2", "x")]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


COMPILING = """
import sys, time
from pathlib import Path
from numba.core import dispatcher
from numba.core.caching import IndexDataCacheFile
import whichtoken
from kernel import twice

def wait_for(name):
    limit = time.monotonic() + 60
    while not Path(name).exists() and time.monotonic() < limit:
        time.sleep(0.01)

if sys.argv[1] == "first":
    compiled = dispatcher._FunctionCompiler.compile

    def slow(self, *arguments):
        Path("first-compiles").touch()
        wait_for("second-has-looked")
        return compiled(self, *arguments)

    dispatcher._FunctionCompiler.compile = slow
else:
    read = IndexDataCacheFile._load_index
    IndexDataCacheFile._load_index = lambda self: (read(self), Path("second-has-looked").touch())[0]
    wait_for("first-compiles")
twice(2)
print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))
"""


@pytest.mark.process
def test_a_process_waits_for_the_kernel_that_another_one_compiles(kernel):
    both = [
        subprocess.Popen([sys.executable, "-c", COMPILING, which], stdout=subprocess.PIPE, text=True, **kernel)
        for which in ("first", "second")
    ]
    assert [process.communicate()[0].split() for process in both] == [["0", "1"], ["1", "0"]]


def test_clock_stands_still_while_kernels_are_compiled():
    """A kernel that takes far longer to compile than to run, and work that takes a known time beside it."""
    from numba import njit

    @njit
    def add(x):
        return x + 1

    def work():
        start = time.perf_counter()
        result = add(1)
        compiling = time.perf_counter() - start
        time.sleep(0.05)
        return result, compiling

    (result, compiling), seconds = seconds_without_compiling(work)
    assert result == 2
    assert 0.05 <= seconds < 0.05 + compiling / 2
