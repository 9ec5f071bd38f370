"""What is offered at the top can be had, is typed, and is all that examples need."""

import ast
import importlib
from pathlib import Path

import pytest

import whichtoken

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "whichtoken"
ROOMS = sorted(filter(str.islower, whichtoken.__all__))


@pytest.mark.parametrize("room", ROOMS)
def test_every_exported_name_is_there(room):
    module = getattr(whichtoken, room)
    assert module is importlib.import_module(f"whichtoken.{room}")
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def typed_names(path):
    """Names that type checkers see in a module: imported at the top, or for them alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


@pytest.mark.parametrize("path", ["", *ROOMS])
def test_every_exported_name_has_a_type(path):
    module = importlib.import_module(f"whichtoken.{path}" if path else "whichtoken")
    names = set(getattr(module, "__all__", [])) - {"__version__"}
    home = SOURCE / path
    stub = home / "__init__.pyi"
    assert names <= set(typed_names(stub if stub.exists() else home / "__init__.py"))


def test_every_room_has_a_type():
    assert set(ROOMS) <= set(typed_names(SOURCE / "__init__.pyi"))
    assert set(ROOMS) | {"TextClassifier"} <= set(dir(whichtoken))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.name)
def test_examples_import_only_what_is_exported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("whichtoken"):
            continue
        parts = node.module.split(".")
        assert len(parts) <= 2 or parts[1] == "theory", f"{node.module} is not a room"
        offered = importlib.import_module(node.module)
        for alias in node.names:
            known = alias.name in getattr(offered, "__all__", []) or alias.name in dir(offered)
            assert known or hasattr(importlib.import_module(f"{node.module}.{alias.name}"), "__doc__"), alias.name
