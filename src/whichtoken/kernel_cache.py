"""The cache of compiled kernels: its folder, locks between processes that compile at once, and timing without compilation."""

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
    """Give numba a private folder for this process if it has no other place for its cache.

    numba refuses to import a cached function where neither the package's folder nor a home folder can be written, as in a
    container that runs as a user without a home. Where no folder at all can be written, commands without kernels still work.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = [os.environ.get("NUMBA_CACHE_DIR"), os.path.dirname(__file__), os.path.join(home, "numba")]
    if any(_is_writable(folder) for folder in places if folder is not None):
        return
    import shutil
    import tempfile

    try:
        # readable by this user only: it holds machine code
        folder = tempfile.mkdtemp(prefix="whichtoken-kernels-")
    except OSError:
        return
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder  # for numba when it is imported, and for worker processes
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder


def _is_writable(folder: str) -> bool:
    """Whether files can be created in a folder; the folder is created if it does not exist."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def lock_kernel_cache() -> None:
    """Let one process at a time compile and save a kernel, from the moment that numba is imported."""
    for name, lock in (("numba.core.caching", _lock_saves), ("numba.core.dispatcher", _compile_once)):

        def load(module: Any, execute: Callable[[Any], None], lock: Callable[[Any], None] = lock) -> None:
            execute(module)
            lock(module)

        add_import_hook(name, load)
        if name in sys.modules:
            lock(sys.modules[name])


def _lock_saves(caching: Any) -> None:
    """Let one process at a time save a kernel.

    numba numbers the files of a kernel's signatures by an index that it read before. Two processes at once can give one number
    to two signatures; from then on every process that loads the one gets the machine code of the other, and crashes.
    """
    save = caching.IndexDataCacheFile.save
    if hasattr(save, "__wrapped__"):
        return

    def save_locked(self: Any, key: Any, data: Any) -> None:
        from contextlib import suppress

        from filelock import FileLock

        # a kernel that cannot be saved (a full disk, a lock that is never released) is still used, and compiled again next time
        with suppress(OSError), FileLock(os.path.join(self._cache_path, "kernels.lock"), timeout=LOCK_SECONDS):
            save(self, key, data)

    save_locked.__wrapped__ = save  # type: ignore[attr-defined]
    caching.IndexDataCacheFile.save = save_locked


def _compile_once(dispatcher: Any) -> None:
    """Compile a kernel for its arguments in one process; the others wait, and load what that one saved.

    Workers that start together need the same kernels at the same time: without this, each of them compiles all of them.
    """
    kernels = dispatcher.Dispatcher
    compile_kernel = kernels.compile
    if hasattr(compile_kernel, "__wrapped__"):
        return
    # at most one lock: what a kernel calls is compiled under the lock of the kernel, so that there is no deadlock
    held: list[str] = []

    def compile_once(self: Any, signature: Any) -> Any:
        from contextlib import ExitStack, suppress
        from zlib import crc32

        from filelock import FileLock

        cache = self._cache
        with dispatcher.global_compiler_lock, ExitStack() as stack:
            if cache.cache_path is not None and not held and signature not in self.overloads:
                key = cache._index_key(signature, self.targetctx.codegen())
                # where nothing can be written, or another process keeps the lock, compile without it
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
    """The result of a call, and its wall time without compiling or loading kernels, which happens once."""
    from numba.core.event import install_timer

    compiling: list[float] = []
    start = time.perf_counter()
    with install_timer("numba:compiler_lock", compiling.append):
        result = work()
    return result, time.perf_counter() - start - sum(compiling)
