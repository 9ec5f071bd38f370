"""Where compiled kernels are kept, and how processes that compile at the same moment keep out of each other's way."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import wraps
from pathlib import Path
from typing import Any


def ensure_kernel_cache() -> None:
    """Give numba a private folder for this process if it would find none; do nothing otherwise.

    numba refuses to import a cached function where neither the package's folder nor a home folder can be written, as in a
    container that runs as a user without a home.
    """
    if "NUMBA_CACHE_DIR" in os.environ or os.access(Path(__file__).parent, os.W_OK):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    try:
        (home / "numba").mkdir(parents=True, exist_ok=True)
        return
    except OSError:
        folder = tempfile.mkdtemp(prefix="whichtoken-kernels-")  # ours alone: it holds machine code
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder  # for numba when it is imported, and for worker processes
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder


def save_kernels_in_turn() -> None:
    """Let processes save compiled kernels one after the other.

    numba numbers the files of a kernel's signatures by an index that it read before. Two processes at once can give one number to
    two signatures; from then on every process that asks for the one gets the machine code of the other, and dies of it.
    """
    from filelock import FileLock
    from numba.core.caching import IndexDataCacheFile

    save: Any = IndexDataCacheFile.save
    if hasattr(save, "__wrapped__"):
        return

    @wraps(save)
    def in_turn(self: Any, key: Any, data: Any) -> None:
        with FileLock(os.path.join(self._cache_path, "kernels.lock")):
            save(self, key, data)

    IndexDataCacheFile.save = in_turn  # type: ignore[method-assign]
