"""Names of claims that have changed, as `claims/renamed.toml` lists them.

Everything in memory has today's names. Ledgers, files of recorded rows and random streams keep the names that a claim, its
fields, values and codes were born with, so that a renamed claim finds its stored rows and draws the same numbers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Names:
    """The names of one claim, translated in one direction; what is not listed keeps its name."""

    id: str
    fields: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)
    # fields that one side does not have: left out where they have this value, or given this value where they are missing
    left_out: Mapping[str, Any] = field(default_factory=dict)
    filled_in: Mapping[str, Any] = field(default_factory=dict)

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a point with their values."""
        kept = {name: value for name, value in values.items() if self.left_out.get(name, ...) != value}
        return {**self.filled_in, **self.overrides(kept)}

    def overrides(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Some fields of a point; a list is a list of values."""
        return {self.fields.get(name, name): self._value(name, value) for name, value in values.items()}

    def measurement(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a row has measured."""
        return {self.measured.get(name, name): value for name, value in values.items()}

    def code(self, code: str) -> str:
        """Code of a verdict."""
        return re.sub("[a-z]+", lambda word: self.words.get(word[0], word[0]), code)

    def _value(self, name: str, value: Any) -> Any:
        if name not in self.values:
            return value
        if isinstance(value, list):
            return [self._value(name, item) for item in value]
        return self.values[name].get(value, value) if isinstance(value, str) else value


def born_names(id: str) -> Names:
    """From today's names of a claim to those it was born with."""
    return _all_names()[0].get(id) or Names(id)


def current_names(born_id: str) -> Names:
    """From the names that a claim was born with to today's."""
    return _all_names()[1].get(born_id) or Names(born_id)


@cache
def _all_names() -> tuple[dict[str, Names], dict[str, Names]]:
    table = tomllib.loads(files("whichtoken.claims").joinpath("renamed.toml").read_text(encoding="utf-8"))
    born, current = {}, {}
    for id in {id for part in table.values() for id in part}:
        parts = ("fields", "values", "codes", "measured")
        fields, values, words, measured = (table.get(part, {}).get(id, {}) for part in parts)
        born_id = table["ids"].get(id, id)
        added, removed = (table[part].get(id, {}) for part in ("added", "removed"))
        born[id] = Names(born_id, fields, values, words, measured, added, removed)
        back = {fields.get(name, name): _inverse(items) for name, items in values.items()}
        current[born_id] = Names(id, _inverse(fields), back, _inverse(words), _inverse(measured), removed, added)
    return born, current


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {born: name for name, born in names.items()}
