"""Texts to words: lower case, apostrophes deleted, broken at everything else that is no letter, digit or mark."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

APOSTROPHES = "'’`´"
HTML_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
CHUNK = 4096  # texts split together; a chunk of long reviews stays below 100 MB


class _Characters(dict[int, str | None]):
    """For `str.translate`: filled while characters are met, because Unicode is large and texts are not."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        # marks belong to their letters: without them words of Hindi, Thai or decomposed French would break
        keep = character.isalnum() or unicodedata.category(character).startswith("M")
        self[code] = None if character in APOSTROPHES else character if keep else " "
        return self[code]


class _SameLength(dict[int, str]):
    """As `_Characters`, but every apostrophe stays, as the plain one, so that places stay what they are."""

    def __missing__(self, code: int) -> str:
        self[code] = CHARACTERS[code] or "'"
        return self[code]


CHARACTERS = _Characters()
SAME_LENGTH = _SameLength()
RUN = re.compile(r"[^\s'](?:\S*[^\s'])?")  # from the first to the last character that is no apostrophe
ASCII = bytes(ord(CHARACTERS[code] or " ") for code in range(128)).lower() + bytes(128)
ASCII_DELETED = "".join(filter(str.isascii, APOSTROPHES)).encode()


@dataclass(frozen=True)
class Words:
    """The words of texts as numbers of distinct words, text after text."""

    ids: NDArray[np.int32]  # (all words,)
    lengths: NDArray[np.int64]  # (n,)
    distinct: list[str]


PlacedWord = tuple[str, int, int]  # a word and the characters text[start:stop] that it was made of


def split_words(texts: Iterable[str]) -> Words:
    """Split every text and number the distinct words in the order of their appearance.

    What follows (stop words, stems, pieces) depends on one word only, so it need be done once per distinct word.
    """
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    ids, lengths = [], []
    for chunk in _chunks(texts):
        words = [_split(text) for text in chunk]
        lengths.append(np.fromiter(map(len, words), np.int64, len(words)))
        flat = map(numbers.__getitem__, chain.from_iterable(words))
        ids.append(np.fromiter(flat, np.int32, int(lengths[-1].sum())))
    if not ids:
        return Words(np.empty(0, np.int32), np.empty(0, np.int64), [])
    return Words(np.concatenate(ids), np.concatenate(lengths), list(numbers))


def place_words(text: str) -> list[PlacedWord]:
    """The words of `split_words`, each with the place in the text that it came from."""
    blank = HTML_BREAK.sub(lambda match: " " * len(match.group()), text) if "<" in text else text
    lowered = blank.lower()
    runs = RUN.finditer(lowered.translate(SAME_LENGTH))
    if len(lowered) == len(blank):
        return [(run.group().replace("'", ""), *run.span()) for run in runs]
    origin = [i for i, character in enumerate(blank) for _ in character.lower()]  # lower case may be longer
    return [(run.group().replace("'", ""), origin[run.start()], origin[run.end() - 1] + 1) for run in runs]


def _split(text: str) -> list[str]:
    if "<" in text:
        text = HTML_BREAK.sub(" ", text)
    if text.isascii():
        return text.encode().translate(ASCII, ASCII_DELETED).decode().split()
    return text.lower().translate(CHARACTERS).split()


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    source = iter(texts)
    first = 0
    while chunk := list(islice(source, CHUNK)):
        for i, text in enumerate(chunk):
            if not isinstance(text, str):
                raise ValueError(f"text {first + i} is of type {type(text).__name__}; texts must be strings")
        yield chunk
        first += len(chunk)
