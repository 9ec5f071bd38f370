"""Short English sentences of our own, as characters: text for small language models, made without any file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ALPHABET = " .,?" + "0123456789" + "abcdefghijklmnopqrstuvwxyz"

NAMES = ("anna", "bruno", "clara", "david", "elena", "felix", "greta", "hugo", "irene", "jonas", "karla", "leo")
THINGS = ("apple", "book", "candle", "drum", "egg", "flower", "goat", "hat", "key", "lamp", "map", "nut")
QUALITIES = ("big", "blue", "calm", "dusty", "early", "fine", "grey", "heavy", "little", "old", "quiet", "small")
DEEDS = ("draws", "finds", "hides", "keeps", "likes", "loses", "paints", "sells", "takes", "wants")


class CharacterText:
    """Sentences of four kinds in random order; three of them can only be finished by looking back.

    A gift is counted again by its receiver, a question is answered with its own words, a sum follows from its two
    terms; the fourth kind is a plain statement.
    """

    alphabet = ALPHABET

    def sample(self, characters: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Codes (characters,) into `alphabet`."""
        if characters < 1:
            raise ValueError(f"characters={characters} must be at least 1")
        kinds = (_gift, _question, _sum, _statement)
        sentences: list[str] = []
        length = 0
        while length < characters:
            sentences.append(kinds[rng.integers(len(kinds))](rng))
            length += len(sentences[-1])
        return self.encode("".join(sentences)[:characters])

    def encode(self, text: str) -> NDArray[np.int64]:
        """Codes of a text."""
        if strange := sorted(set(text) - set(ALPHABET)):
            raise ValueError(f"text holds {strange[0]!r}, known characters are {ALPHABET!r}")
        return np.array([ALPHABET.index(character) for character in text], dtype=np.int64)

    def decode(self, codes: Sequence[int] | NDArray[np.int64]) -> str:
        """The text of codes."""
        return "".join(ALPHABET[code] for code in codes)


def _gift(rng: np.random.Generator) -> str:
    giver, receiver = rng.choice(NAMES, 2, replace=False)
    things = f"{rng.integers(2, 100)} {_one(THINGS, rng)}s"
    return f"{giver} gives {receiver} {things}, so {receiver} has {things}. "


def _question(rng: np.random.Generator) -> str:
    thing = f"the {_one(QUALITIES, rng)} {_one(THINGS, rng)}"
    name, deed = _one(NAMES, rng), _one(DEEDS, rng)
    return f"who {deed} {thing}? {name} {deed} {thing}. "


def _sum(rng: np.random.Generator) -> str:
    first, second = rng.integers(1, 10, 2)
    return f"{first} and {second} is {first + second}. "


def _statement(rng: np.random.Generator) -> str:
    return f"{_one(NAMES, rng)} {_one(DEEDS, rng)} a {_one(QUALITIES, rng)} {_one(THINGS, rng)}. "


def _one(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]
