"""Where compiled kernels are kept, how processes that compile at the same moment keep out of each other's way, and a clock that
stands still while they are compiled.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from whichtoken.working_folder import add_import_hook

LOCK_SECONDS = 60.0  # to wait for another process that compiles or saves a kernel
LOCKS = 64  # files in a folder of kernels

Result = TypeVar("Result")


def ensure_kernel_cache() -> None:
    """Give numba a private folder for this process if it would find none; do nothing otherwise.

    numba refuses to import a cached function where neither the package's folder nor a home folder can be written, as in a
    container that runs as a user without a home. Where no folder at all can be written, commands without kernels still work.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = [os.environ.get("NUMBA_CACHE_DIR"), os.path.dirname(__file__), os.path.join(home, "numba")]
    if any(_can_be_written(folder) for folder in places if folder is not None):
        return
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="whichtoken-kernels-")  # ours alone: it holds machine code
    except OSError:
        return
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder  # for numba when it is imported, and for worker processes
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder


def _can_be_written(folder: str) -> bool:
    """Whether files can be made in a folder, which is made where it does not exist."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def lock_kernel_cache() -> None:
    """Let one process at a time compile and save a kernel, from the moment that numba is imported."""
    for name, lock in (("numba.core.caching", _lock_saves), ("numba.core.dispatcher", _compile_once)):
        add_import_hook(name, _import_and(lock))
        if name in sys.modules:
            lock(sys.modules[name])


def _import_and(lock: Callable[[Any], None]) -> Callable[[Any, Callable[[Any], None]], None]:
    def load(module: Any, execute: Callable[[Any], None]) -> None:
        execute(module)
        lock(module)

    return load


def _lock_saves(caching: Any) -> None:
    """Save in turn.

    numba numbers the files of a kernel's signatures by an index that it read before. Two processes at once can give one number to
    two signatures; from then on every process that asks for the one gets the machine code of the other, and dies of it.
    """
    save = caching.IndexDataCacheFile.save
    if hasattr(save, "__wrapped__"):
        return

    def save_in_turn(self: Any, key: Any, data: Any) -> None:
        from contextlib import suppress

        from filelock import FileLock

        # a kernel that cannot be saved (a full disk, a lock that stays) is used all the same, and compiled again next time
        with suppress(OSError), FileLock(os.path.join(self._cache_path, "kernels.lock"), timeout=LOCK_SECONDS):
            save(self, key, data)

    save_in_turn.__wrapped__ = save  # type: ignore[attr-defined]
    caching.IndexDataCacheFile.save = save_in_turn


def _compile_once(dispatcher: Any) -> None:
    """Compile a kernel for its arguments in one process; the others wait, and load what that one saved.

    Workers that begin together need the same kernels at the same moment: without this, each of them compiles them all.
    """
    kernels = dispatcher.Dispatcher
    compile_kernel = kernels.compile
    if hasattr(compile_kernel, "__wrapped__"):
        return
    # one lock at most: what a kernel calls is compiled under the lock of the kernel, so that no processes wait in a circle
    held: list[str] = []

    def compile_once(self: Any, signature: Any) -> Any:
        from contextlib import ExitStack, suppress
        from zlib import crc32

        from filelock import FileLock

        cache = self._cache
        with dispatcher.global_compiler_lock, ExitStack() as stack:
            if cache.cache_path is not None and not held and signature not in self.overloads:
                key = cache._index_key(signature, self.targetctx.codegen())
                # where nothing can be written, or the holder does not go on, it is as without a lock
                with suppress(OSError):
                    if key not in cache._cache_file._load_index():
                        cache._impl.locator.ensure_cache_path()
                        name = f"kernels-{crc32(f'{cache._impl.filename_base} {signature}'.encode()) % LOCKS}.lock"
                        held.append(os.path.join(cache.cache_path, name))
                        stack.callback(held.clear)
                        stack.enter_context(FileLock(held[0], timeout=LOCK_SECONDS))
            return compile_kernel(self, signature)

    compile_once.__wrapped__ = compile_kernel  # type: ignore[attr-defined]
    kernels.compile = compile_once


def seconds_without_compiling(work: Callable[[], Result]) -> tuple[Result, float]:
    """What a call gives, and its wall time less that of compiling kernels, or of loading them: once per machine, or process."""
    from numba.core.event import install_timer

    compiling: list[float] = []
    start = time.perf_counter()
    with install_timer("numba:compiler_lock", compiling.append):
        result = work()
    return result, time.perf_counter() - start - sum(compiling)
