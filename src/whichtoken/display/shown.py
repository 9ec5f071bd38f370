"""How results show themselves: one line in a console, a small table in a notebook, whatever arrays they contain.

A result inherits from `Shown`. It may say in one sentence what it found (`_headline`) and which facts are worth a line
(`_facts`, by default its fields); everything else is common to all results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import islice
from numbers import Integral, Real
from typing import Any

from whichtoken.display.text import pluralize, visible

LONGEST = 200  # characters of a line
LONGEST_TEXT = 70  # of a text inside it
LONGEST_CELL = 400  # of a text in a table
FEW = 6  # numbers of an array that are shown rather than counted
MOST_LINES = 12  # of a table inside a table
DEEPEST = 2  # tables inside tables


class Shown:
    """A result with a short `repr` and a table in notebooks."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # otherwise a dataclass writes its own, which prints every array
            cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]

    def _headline(self) -> str:
        """What was found, in one sentence; empty where the facts are enough."""
        return ""

    def _facts(self) -> Mapping[str, object]:
        """Names and values worth a line: the public fields."""
        fields: Any = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        names = [field.name for field in fields if field.repr and not field.name.startswith("_")]
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        name, headline = type(self).__name__, self._headline()
        if headline:
            return f"<{name}: {visible(headline)}>"
        facts = ", ".join(f"{fact}={brief(value)}" for fact, value in self._facts().items())
        return f"{name}({_cut(facts, LONGEST)})"

    def _repr_html_(self) -> str:
        return facts_html(type(self).__name__, self._facts(), self._headline())


def facts_html(title: str, facts: Mapping[str, object], headline: str = "") -> str:
    """Names and values as a table for a notebook, in its own colors, light or dark."""
    from whichtoken.display.html import template_engine

    template = template_engine("whichtoken.display", "assets").get_template("result.html")
    return template.render(title=title, headline=headline, facts=facts, brief=brief, unfold=_unfold).strip()


def _unfold(value: object, depth: int) -> tuple[str, Any]:
    """How a cell shows a value: as text, or, a few levels deep, as a result, facts or rows of results to unfold."""
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Shown):
        value = value[0]
    if depth <= DEEPEST and isinstance(value, Shown):
        return "result", value
    if depth <= DEEPEST and isinstance(value, Mapping) and value:
        return "facts", dict(islice(value.items(), MOST_LINES))
    if depth <= DEEPEST and isinstance(value, Sequence) and len(value) and isinstance(value[0], Shown):
        return "rows", value[:MOST_LINES]
    return "text", _cut(value, LONGEST_CELL) if isinstance(value, str) else brief(value)


def brief(value: object) -> str:
    """A value in a few characters: itself if it is short, otherwise its kind and size."""
    for applies, say in KINDS:
        if applies(value):
            return say(value)
    return _cut(visible(repr(value), keep=""), LONGEST_TEXT) if _plain(value) else type(value).__name__


def _plain(value: object) -> bool:
    """Whether a value's own `repr` is useful: not if it only gives an address."""
    return type(value).__repr__ is not object.__repr__ and not type(value).__module__.startswith(("torch", "numpy"))


def _number(value: Any) -> str:
    if isinstance(value, Integral):
        return str(int(value))
    return repr(float(f"{float(value):.4g}"))  # 2.0 stays a float


def _array(value: Any) -> str:
    shape = tuple(int(length) for length in value.shape)
    kind = str(value.dtype).rpartition(".")[2]
    short = len(shape) == 1 and shape[0] <= FEW and kind.rstrip("0123456789") in ("float", "int", "bool")
    if len(shape) == 0 or short:
        return brief(value.tolist())
    return f"{type(value).__name__.removeprefix('nd')} of shape {shape}"


def _sequence(value: Any) -> str:
    short = len(value) <= FEW and all(item is None or isinstance(item, str | bool | Real) for item in value)
    inside = ", ".join(map(brief, value)) if short else ""
    if not short or len(inside) > LONGEST_TEXT:
        return pluralize(len(value), "item")
    return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 3]}..."


# tried in this order
KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], str]]] = [
    (lambda value: value is None or isinstance(value, bool), str),
    (lambda value: isinstance(value, str), lambda value: _cut(visible(repr(str(value)), keep=""), LONGEST_TEXT)),
    (lambda value: isinstance(value, Real), _number),
    (lambda value: hasattr(value, "shape") and hasattr(value, "dtype"), _array),
    (lambda value: hasattr(value, "shape"), lambda value: f"{type(value).__name__} of shape {tuple(value.shape)}"),
    (lambda value: isinstance(value, Shown), lambda value: _cut(Shown.__repr__(value), LONGEST)),
    (lambda value: isinstance(value, Mapping), lambda value: pluralize(len(value), "key")),
    (lambda value: isinstance(value, Sequence | set | frozenset), _sequence),
    (lambda value: isinstance(value, Sized), lambda value: f"{type(value).__name__} of {len(value)}"),
    (
        lambda value: isinstance(value, type) or callable(value),
        lambda value: getattr(value, "__name__", type(value).__name__),
    ),
]
