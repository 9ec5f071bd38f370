"""Arrows point one way, and light things stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "whichtoken"
UPSTREAM = {"data", "models", "optim", "margin", "theory"}
DOWNSTREAM = {"experiments", "lab", "report", "estimators", "cli"}


def imported(path):
    """Names of the modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", sorted(UPSTREAM))
def test_upstream_knows_nothing_of_downstream(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        parts = {name.split(".")[1] for name in imported(path) if name.startswith("whichtoken.")}
        assert not parts & DOWNSTREAM, path


def test_theory_imports_neither_torch_nor_models():
    for path in (SOURCE / "theory").rglob("*.py"):
        assert not any(
            name.startswith(("torch", "whichtoken.models", "whichtoken.optim")) for name in imported(path)
        ), path


@pytest.mark.parametrize(
    "module",
    [
        "whichtoken",
        "whichtoken.lab",
        "whichtoken.theory",
        "whichtoken.margin",
        "whichtoken.data",
        "whichtoken.optim",
        "whichtoken.models",
    ],
)
def test_import_is_light(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
