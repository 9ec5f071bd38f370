"""Which names the packages export, read from the text of the sources: nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "whichtoken"


def exports() -> Iterator[tuple[str, str]]:
    """Module and name of every exported object; those of `whichtoken` itself are exported by a package in it too."""
    for path in sorted(SOURCE.rglob("*.py*")):
        module = ".".join(("whichtoken", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        if module == "whichtoken" or "._" in module or path.suffix not in (".py", ".pyi"):
            continue
        for node in ast.parse(path.read_text()).body:
            if path.suffix == ".pyi" and isinstance(node, ast.ImportFrom):
                yield from ((module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                yield from ((module, name) for name in ast.literal_eval(node.value))
