"""Compiled kernels find a place where neither the package nor a home folder can be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whichtoken.kernel_cache import ensure_kernel_cache


@pytest.fixture
def read_only(monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def test_home_is_enough(read_only, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ensure_kernel_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ


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
from numba import njit
from numba.core.caching import IndexDataCacheFile
from whichtoken.kernel_cache import save_kernels_in_turn

read = IndexDataCacheFile._load_index
IndexDataCacheFile._load_index = lambda self: (read(self), time.sleep(0.3))[0]  # another process comes in between
save_kernels_in_turn()
from kernel import twice
twice(int(sys.argv[1]) if sys.argv[1] != "x" else 1.5)
"""


def test_processes_that_compile_at_once_leave_a_sound_cache(tmp_path):
    """Two signatures of one kernel, saved at the same moment, must not get one file."""
    (tmp_path / "kernel.py").write_text(
        "from numba import njit\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    both = [
        subprocess.Popen([sys.executable, "-c", SAVING, kind], env=environment, cwd=tmp_path) for kind in ("2", "x")
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
