"""Which dataclasses a user can get hold of, read from the text of the sources: nothing is imported for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from exported_names import SOURCE, exports

ALSO = ("FitReport",)  # what `whichtoken fit` and `whichtoken evaluate` find
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class is a dataclass and no estimator, which scikit-learn shows: that has `repr=False`."""
    written = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any("dataclass" in decorator and "repr=False" not in decorator for decorator in written)


def definitions() -> dict[str, list[tuple[str, ast.ClassDef | ast.FunctionDef]]]:
    """Public classes and functions by name, with the module of each."""
    found: dict[str, list[tuple[str, ast.ClassDef | ast.FunctionDef]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("claims", "app"):  # claims have Points, the others show what rooms return
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.setdefault(node.name, []).append((".".join(("whichtoken", *parts)), node))
    return found


def leads_to(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Names in what a function returns, or in what a class holds, offers and documents as attributes."""
    if isinstance(node, ast.FunctionDef):
        yield from NAME.findall(ast.unparse(node.returns)) if node.returns else ()
        return
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            yield from NAME.findall(ast.unparse(item.annotation).strip("'\""))
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            yield from leads_to(item)
    _, _, attributes = (ast.get_docstring(node) or "").partition("\nAttributes\n")
    for kind in re.findall(r"^\w+_ : (.+)$", attributes, flags=re.MULTILINE):  # of an estimator
        yield from NAME.findall(kind)
    yield from (name for base in node.bases for name in NAME.findall(ast.unparse(base)))


def returned_types() -> list[tuple[str, str]]:
    """Module and name of every dataclass that can be reached from what is exported."""
    known, seen, waiting, found = definitions(), set(), [*(name for _, name in exports()), *ALSO], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith("_"):
            continue
        seen.add(name)
        for module, node in known.get(name, []):
            waiting += leads_to(node)
            if isinstance(node, ast.ClassDef) and is_dataclass(node):
                found.add((module, name))
    return sorted(found)
