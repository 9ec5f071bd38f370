"""Split texts into lower-case words at everything but letters, digits, marks and apostrophes, which are deleted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.token_sequences import TokenSequences

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


class Places(NamedTuple):
    """The characters `text[start:stop]` that each word or token of the texts was made of."""

    starts: NDArray[np.int64]  # (all words,)
    stops: NDArray[np.int64]  # (all words,)


def split_words(texts: Iterable[str]) -> TokenSequences:
    """Split every text and number the distinct words in the order of their appearance.

    What follows (stop words, stems, pieces) depends on one word only, so it need be done once per distinct word.
    """
    return TokenSequences.from_names([_split(text) for text in chunk] for chunk in text_chunks(texts))


def place_words(texts: Sequence[str]) -> tuple[TokenSequences, Places]:
    """The words of `split_words`, and where they stand."""
    same = [_same_length(text) for text in texts]
    words = TokenSequences.from_names([[line.replace("'", "").split() for line in same]])
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
