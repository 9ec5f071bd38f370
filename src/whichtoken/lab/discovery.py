"""Find experiments by folder: the package's own, then those in the folders that WHICHTOKEN_EXPERIMENTS names.

A file that cannot be imported, or a class with a wrong declaration, is reported as a fault of that claim; the others load.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from whichtoken.errors import UsageError, in_one_line, unknown
from whichtoken.lab.experiment import Experiment, Grid
from whichtoken.lab.plan import field_types
from whichtoken.lab.renamed import current_names


@dataclass(frozen=True)
class Fault:
    """A claim that cannot be loaded, and why."""

    name: str  # its id where that is known, else its file
    sentence: str


def experiments() -> dict[str, Experiment[Any]]:
    """Every experiment that loads, by its id, sorted."""
    return _load(os.environ.get("WHICHTOKEN_EXPERIMENTS", ""))[0]


def faults() -> list[Fault]:
    """Every claim that could not be loaded."""
    return _load(os.environ.get("WHICHTOKEN_EXPERIMENTS", ""))[1]


def find(experiment_id: str) -> Experiment[Any]:
    """The experiment with this id; otherwise an error that says what is wrong with it or suggests the nearest one."""
    if (own := _own_experiment(experiment_id)) is not None:
        return own
    known = experiments()
    if experiment_id in known:
        return known[experiment_id]
    if (current := current_names(experiment_id).id) in known:
        raise UsageError(f"unknown claim '{experiment_id}'; renamed: use {current}")
    for fault in faults():
        if fault.name == experiment_id:
            raise UsageError(f"{fault.name} is broken: {fault.sentence}")
    broken = "".join(f"; {fault.name} is broken: {fault.sentence}" for fault in faults())
    raise UsageError(f"{unknown('claim', experiment_id, known, listed_by='whichtoken list')}{broken}")


@cache
def _own_experiment(experiment_id: str) -> Experiment[Any] | None:
    """The package's experiment with this id, without loading the others: its module has the name of its id."""
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", experiment_id):
        return None
    try:
        module = importlib.import_module(f"whichtoken.claims.{experiment_id.replace('/', '.').replace('-', '_')}")
        return next((item() for item in _experiments_in(module) if item.id == experiment_id), None)
    except Exception:  # none of the package's, or `experiments` says what is wrong with it
        return None


@cache
def _load(folders: str) -> tuple[dict[str, Experiment[Any]], list[Fault]]:
    found: dict[str, Experiment[Any]] = {}
    wrong: list[Fault] = []
    for name, load in [*_own_modules(), *_modules_in(folders)]:
        try:
            module = load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a claim's file may even call sys.exit
            wrong.append(Fault(name, f"the file cannot be imported: {in_one_line(error)}"))
            continue
        for item in _experiments_in(module):
            try:
                _check(item, found)
                found[item.id] = item()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                wrong.append(Fault(_name(item, found, name), in_one_line(error)))
    return dict(sorted(found.items())), wrong


def _experiments_in(module: ModuleType) -> list[type[Experiment[Any]]]:
    """The experiments of a module, without base classes, which have no id."""
    return [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and item.__module__ == module.__name__
        and issubclass(item, Experiment)
        and hasattr(item, "id")
    ]


def _check(item: type[Experiment[Any]], found: Mapping[str, Experiment[Any]]) -> None:
    """Refuse a declaration that would fail later, when it would affect other claims."""
    if not isinstance(item.id, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", item.id):
        raise UsageError(f"id={item.id!r} must be written as theory/claim, in letters, digits and dashes")
    if item.id in found:
        raise UsageError(f"two experiments are called '{item.id}'; rename the one in {inspect.getfile(item)}")
    if inspect.isabstract(item):
        raise UsageError(f"the class does not define {' and '.join(sorted(item.__abstractmethods__))}")
    presets = getattr(item, "presets", None)
    if not isinstance(presets, Mapping) or not all(
        isinstance(name, str) and isinstance(grids, (tuple, list)) and all(isinstance(grid, Grid) for grid in grids)
        for name, grids in presets.items()
    ):
        raise UsageError("presets must be a dictionary from the name of a preset to a tuple of Grids")
    if not is_dataclass(getattr(item, "point_type", None)):
        raise UsageError("the class must name its point, as in Experiment[Point] with a frozen dataclass Point")
    if type(item.version) is not int:
        raise UsageError(f"version={item.version!r} must be a whole number")
    known = field_types(item())
    if not isinstance(item.ranges, Mapping) or not all(
        known.get(name) in (int, float) and isinstance(ends, tuple) and len(ends) == 2 and ends[0] < ends[1]
        for name, ends in item.ranges.items()
    ):
        raise UsageError("ranges must be a dictionary from a field that is a number to its low and high end")
    if not isinstance(item.needs, str):
        raise UsageError(f"needs={item.needs!r} must be the name of a package")
    instance = item()
    expected: Any = instance.expected
    if not isinstance(expected, Mapping) or not all(isinstance(codes, Mapping) for codes in expected.values()):
        raise UsageError("expected must be a dictionary from a preset to a dictionary from a code to its state")
    field_types(instance)
    for text in (instance.title, instance.claim, instance.source):
        if not isinstance(text, str):
            raise UsageError(f"title, claim and source must be texts, not {text!r}")


def _name(item: type[Experiment[Any]], found: Mapping[str, Experiment[Any]], file: str) -> str:
    """The id of a broken claim, or its file if the id is taken or invalid."""
    return item.id if isinstance(item.id, str) and item.id not in found and "/" in item.id else file


def _own_modules() -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    import whichtoken.claims as package

    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.ispkg and not info.name.rpartition(".")[2].startswith("_"):
            yield info.name, partial(importlib.import_module, info.name)


def _modules_in(folders: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    for folder in filter(None, folders.split(os.pathsep)):
        if not Path(folder).is_dir():
            raise UsageError(f"WHICHTOKEN_EXPERIMENTS names '{folder}', which is not a folder")
        for path in sorted(Path(folder).glob("*.py")):
            yield path.name, partial(_module_from, path)


def _module_from(path: Path) -> ModuleType:
    name = f"whichtoken_experiments_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
