"""Everything a user gets back shows itself: one short line in a console, a table in a notebook that obeys no text."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import numpy as np
import pytest
from returned_types import returned_types

from whichtoken.display.shown import LONGEST, Shown

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m" + "long" * 500


def classes() -> list[Any]:
    return [
        pytest.param(module, name, id=f"{module.removeprefix('whichtoken.')}.{name}")
        for module, name in returned_types()
    ]


def filled(kind: Any) -> Any:
    """One with a hostile text or a large array in every field."""
    made = object.__new__(kind)
    for number, field in enumerate(dataclasses.fields(kind)):
        object.__setattr__(made, field.name, [HOSTILE, np.zeros((300, 200)), [HOSTILE] * 50, {HOSTILE: 1}][number % 4])
    return made


@pytest.mark.parametrize(("module", "name"), classes())
def test_shows_itself(module: str, name: str) -> None:
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, Shown), f"let {name} inherit whichtoken.display.shown.Shown"
    assert kind.__repr__ is Shown.__repr__, "a dataclass's own repr prints every array"
    if inspect.isabstract(kind) or kind._headline is not Shown._headline or kind._facts is not Shown._facts:
        return  # made for real in tests/display/test_shown.py
    made = filled(kind)
    line, table = repr(made), made._repr_html_()
    assert line.startswith(f"{name}(")
    assert len(line) <= LONGEST + len(name) + 2
    for shown in (line, table):
        assert "\u202e" not in shown
        assert "\x1b" not in shown
    assert "<script" not in table
