"""Short reviews in which one word decides: does attention look at it? They stand in `pivot_sentences.toml`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import NamedTuple


class PivotSentence(NamedTuple):
    """A review, the word that decides it, in lower case, and its label, -1 or +1."""

    text: str
    pivot: str
    label: int


_TEXTS = tomllib.loads(files(__package__).joinpath("pivot_sentences.toml").read_text(encoding="utf-8"))
PIVOT_SENTENCES = tuple(
    PivotSentence(text, pivot, label)
    for name, label in (("good", +1), ("bad", -1))
    for pivot, text in _TEXTS[name].items()
)
