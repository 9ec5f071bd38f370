"""Texts to words: lower case, apostrophes deleted, broken at everything else that is no letter, digit or mark."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

APOSTROPHES = "'’`´"
HTML_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
APOSTROPHE, SPACE = ord("'"), ord(" ")
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
ASCII = bytes(ord(CHARACTERS[code] or "'") for code in range(128)).lower() + bytes(128)
ASCII_DELETED = "".join(filter(str.isascii, APOSTROPHES)).encode()


@dataclass(frozen=True)
class Words:
    """The words of texts as numbers of distinct words, text after text."""

    ids: NDArray[np.int32]  # (all words,)
    lengths: NDArray[np.int64]  # (n,)
    distinct: list[str]


class Places(NamedTuple):
    """The characters `text[start:stop]` that each word or token of the texts was made of."""

    starts: NDArray[np.int64]  # (all words,)
    stops: NDArray[np.int64]  # (all words,)


def split_words(texts: Iterable[str]) -> Words:
    """Split every text and number the distinct words in the order of their appearance.

    What follows (stop words, stems, pieces) depends on one word only, so it need be done once per distinct word.
    """
    return _number([_split(text) for text in chunk] for chunk in text_chunks(texts))


def place_words(texts: Sequence[str]) -> tuple[Words, Places]:
    """The words of `split_words`, and where they stand."""
    same = [_same_length(text) for text in texts]
    words = _number([[line.replace("'", "").split() for line in same]])
    # one byte per character: of letters outside ASCII only the number matters here
    codes = np.frombuffer(" ".join(same).encode("ascii", "replace"), np.uint8)
    sizes = np.fromiter(map(len, same), np.int64, len(same))
    kept = np.flatnonzero(codes != APOSTROPHE)
    edges = np.flatnonzero(np.diff(codes[kept] != SPACE, prepend=False, append=False))
    before = np.repeat(np.cumsum(sizes + 1) - sizes - 1, words.lengths)
    places = Places(kept[edges[::2]] - before, kept[edges[1::2] - 1] + 1 - before)
    ends = np.cumsum(words.lengths)
    for i in np.flatnonzero(sizes != list(map(len, texts))).tolist():  # lower case may be longer
        origin = np.repeat(np.arange(len(texts[i])), [len(character.lower()) for character in texts[i]])
        here = slice(ends[i] - words.lengths[i], ends[i])
        places.starts[here], places.stops[here] = origin[places.starts[here]], origin[places.stops[here] - 1] + 1
    return words, places


def _number(chunks: Iterable[list[list[str]]]) -> Words:
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for words in chunks:
        lengths.append(np.fromiter(map(len, words), np.int64, len(words)))
        flat = map(numbers.__getitem__, chain.from_iterable(words))
        ids.append(np.fromiter(flat, np.int32, int(lengths[-1].sum())))
    return Words(np.concatenate(ids), np.concatenate(lengths), list(numbers))


def _same_length(text: str) -> str:
    """Lower-case words, spaces and plain apostrophes, each character where it was."""
    if "<" in text:
        text = HTML_BREAK.sub(lambda match: " " * len(match.group()), text)
    return text.encode().translate(ASCII).decode() if text.isascii() else text.lower().translate(SAME_LENGTH)


def _split(text: str) -> list[str]:
    if "<" in text:
        text = HTML_BREAK.sub(" ", text)
    if text.isascii():
        return text.encode().translate(ASCII, ASCII_DELETED).decode().split()
    return text.lower().translate(CHARACTERS).split()


def text_chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts, some at a time, so that a stream of them is never in memory as a whole."""
    source = iter(texts)
    first = 0
    while chunk := list(islice(source, CHUNK)):
        for i, text in enumerate(chunk):
            if not isinstance(text, str):
                raise ValueError(f"text {first + i} is of type {type(text).__name__}; texts must be strings")
        yield chunk
        first += len(chunk)
