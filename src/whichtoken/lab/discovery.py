"""Experiments are found by folder: the package's own, then those named by WHICHTOKEN_EXPERIMENTS."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from whichtoken.errors import UsageError, unknown
from whichtoken.lab.experiment import Experiment


def experiments() -> dict[str, Experiment[Any]]:
    """Every experiment by its id, sorted."""
    return _load(os.environ.get("WHICHTOKEN_EXPERIMENTS", ""))


def find(experiment_id: str) -> Experiment[Any]:
    """The experiment of this id, or an error that names the nearest one."""
    known = experiments()
    if experiment_id not in known:
        raise unknown("experiment", experiment_id, known)
    return known[experiment_id]


@cache
def _load(folders: str) -> dict[str, Experiment[Any]]:
    found: dict[str, Experiment[Any]] = {}
    for module in [*_own_modules(), *_modules_in(folders)]:
        for item in vars(module).values():
            if not (isinstance(item, type) and issubclass(item, Experiment) and item.__module__ == module.__name__):
                continue
            if inspect.isabstract(item) or not hasattr(item, "id"):  # a base that several experiments share
                continue
            if item.id in found:
                raise UsageError(f"two experiments are called '{item.id}'; rename the one in {module.__file__}")
            found[item.id] = item()
    return dict(sorted(found.items()))


def _own_modules() -> Iterator[ModuleType]:
    import whichtoken.experiments as package

    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.ispkg:
            yield importlib.import_module(info.name)


def _modules_in(folders: str) -> Iterator[ModuleType]:
    for folder in filter(None, folders.split(os.pathsep)):
        if not Path(folder).is_dir():
            raise UsageError(f"WHICHTOKEN_EXPERIMENTS names '{folder}', which is not a folder")
        for path in sorted(Path(folder).glob("*.py")):
            yield _module_from(path)


def _module_from(path: Path) -> ModuleType:
    name = f"whichtoken_experiments_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
