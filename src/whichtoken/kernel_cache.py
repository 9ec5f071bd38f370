"""A place for compiled kernels where neither the package's folder nor a home folder can be written.

numba refuses to import a cached function there, as in a container that runs as a user without a home.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def ensure_kernel_cache() -> None:
    """Give numba a private folder for this process if it would find none; do nothing otherwise."""
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
