"""The working folder holds a user's data. Nothing in it is executed, and no library takes its settings from it.

Python started as `python -m` looks for modules there first, matplotlib reads a `matplotlibrc` there (which can start LaTeX),
and numba a `.numba_config.yaml` (which can name a folder of machine code to load). All three are prevented where Python runs
without the working folder on its path: `python -P`, PYTHONSAFEPATH, and every process of this program.

This module imports only modules that Python has already loaded: it runs while the working folder may still be on the path.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Execute = Callable[[ModuleType], None]
    Hook = Callable[[ModuleType, Execute], None]

SAFE_PATH = "PYTHONSAFEPATH"


def distrust_working_folder() -> None:
    """Take no module and no setting from the working folder, in this process and in those that it starts.

    Only for the command line of this package: a user's own program decides for itself what it trusts.
    """
    os.environ[SAFE_PATH] = "1"


def _leave_module_path() -> None:
    """Drop the working folder from the path of modules if this process was started as `python -m whichtoken`.

    Python puts it there before any code of ours runs. It stays where this package itself was found in it.
    """
    if sys.argv[:1] != ["-m"]:  # what Python writes there while it looks for the module
        return
    module = sys.orig_argv[-len(sys.argv)]  # before the arguments: whichtoken.x, or -mwhichtoken.x
    if (module.partition("m")[2] if module.startswith("-") else module).partition(".")[0] != "whichtoken":
        return
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        return
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and sys.path[:1] == [folder] and os.path.realpath(home) != os.path.realpath(folder):
        del sys.path[0]


def distrust_settings() -> None:
    """Let matplotlib and numba ignore settings in the working folder, where that is not trusted."""
    add_import_hook("matplotlib", lambda module, execute: _execute_without("matplotlibrc", module, execute))
    add_import_hook("numba.core.config", _import_numba_settings)


def add_import_hook(name: str, hook: "Hook") -> None:
    """Call `hook(module, execute)` in place of `execute(module)` when a module is imported, whoever imports it."""
    if not any(isinstance(finder, ImportHooks) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportHooks())
    ImportHooks.hooks[name] = hook


class ImportHooks:
    """The finder that `add_import_hook` puts before the others; a module without a hook costs one look-up."""

    hooks: dict[str, "Hook"] = {}

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        """What the import system asks every finder on `sys.meta_path`."""
        hook = self.hooks.get(name)
        spec = None if hook is None else PathFinder.find_spec(name, path, target)
        loader = None if spec is None else spec.loader
        if hook is None or loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module  # the module keeps its loader as it was
            hook(module, execute)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _import_numba_settings(module: "ModuleType", execute: "Execute") -> None:
    """Import numba's settings without the `.numba_config.yaml` of the working folder."""
    _execute_without(".numba_config.yaml", module, execute)
    if _is_distrusted():
        module._config_fname = os.devnull  # type: ignore[attr-defined]  # read again before every compilation


def _is_distrusted() -> bool:
    return sys.flags.safe_path or bool(os.environ.get(SAFE_PATH))


def _execute_without(name: str, module: "ModuleType", execute: "Execute") -> None:
    """Execute a module that looks for a file of this name in the working folder, and let it find none if that is not trusted."""
    exists: Any = os.path.exists
    if _is_distrusted():
        os.path.exists = lambda path: path != name and exists(path)
    try:
        execute(module)
    finally:
        os.path.exists = exists


_leave_module_path()
