r"""Words of texts in any script, and where in the text each of them stands.

The rule (version 2) in steps that need nothing but Unicode tables and regular expressions:

1. HTML character references that end in a semicolon (`REFERENCE`) become characters; then HTML tags and comments (`MARKUP`)
   become as many spaces as they have characters.
2. The text is brought to NFC, `İ` becomes `i`, and the rest lower case.
3. A sequence of emoji that zero-width joiners (U+200D) hold together (`SEQUENCE`) stays, without its variation selectors
   (U+FE0F). Of everything else each character becomes: `'` if it is one of `APOSTROPHES`; itself if it is an emoji, a skin
   tone or a regional indicator (`EMOJI`, `TONES`, `FLAGS`); a space if it is U+200B; nothing if it is invisible (category
   Cf), a variation selector (U+FE00 to U+FE0F, U+E0100 to U+E01EF) or U+0640; if it is a letter, digit or mark (`\p{L}`,
   `\p{N}`, `\p{M}`) its NFKC form in lower case, or itself where that form holds anything else; a space otherwise.
4. The result is brought to NFC.
5. An apostrophe behind an elided word and before a vowel or h (`ELISION`: l'été, qu'il, dell'arte) becomes a space; the other
   apostrophes are deleted (don't is dont).
6. Spaces separate words. Each match of `SPECIAL` is a word of its own, too: an emoji sequence, a flag, or one character with
   its marks of a script without spaces (`SPACELESS`: Thai, Lao, Myanmar, Khmer, Han, Hiragana, Katakana, Bopomofo).
7. Neighboring words that are all characters of such a script count together even where pairs of other words do not: two of
   any, three of Thai, Lao, Myanmar and Khmer, whose characters say less (`REACH`).

Version 1, for the folders of older models and for the experiments of the paper: `<br>` becomes spaces, lower case,
apostrophes are deleted, and whatever is no letter, digit or mark separates words.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.token_counts import TokenSequences

CHUNK = 4096  # texts split together; a chunk of long reviews stays below 100 MB
APOSTROPHES = "'’`´\u02bc\uff07"
HTML_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
REFERENCE = re.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_TAGS = (
    "a|abbr|address|article|aside|b|blockquote|body|br|button|center|cite|code|dd|del|div|dl|dt|em|figure|font|footer|form|h[1-6]|"
    "head|header|hr|html|i|iframe|img|input|ins|label|li|link|main|mark|meta|nav|ol|option|p|pre|q|s|script|section|select|small|"
    "span|strike|strong|style|sub|sup|table|tbody|td|textarea|tfoot|th|thead|title|tr|tt|u|ul|video"
)
MARKUP = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>|<!--[^<>]*-->|<!doctype[^<>]*>", re.IGNORECASE)
_SOUTHEAST = "\u0e01-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
SPACELESS = (
    f"{_SOUTHEAST}\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff"
)
# marks that may follow a character of those scripts; elsewhere \p{M} says the same
_MARKS = "".join(
    chr(code)
    for first, last in (
        (0x300, 0x370),
        (0xE00, 0xF00),
        (0x1000, 0x10A0),
        (0x1780, 0x1800),
        (0x3099, 0x309B),
        (0xA9E0, 0xAA80),
    )
    for code in range(first, last)
    if unicodedata.category(chr(code)).startswith("M")
)
CHARACTER = re.compile(f"[{SPACELESS}][{_MARKS}]*")
REACH = ((re.compile(f"[{_SOUTHEAST}][{_MARKS}]*"), 3), (CHARACTER, 2))
EMOJI = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u2600-\u2775\u2794-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001f0ff\U0001f170-\U0001f19a\U0001f201-\U0001f3fa\U0001f400-\U0001faff"
)
TONES, FLAGS, JOINER, VARIATION = "\U0001f3fb-\U0001f3ff", "\U0001f1e6-\U0001f1ff", "\u200d", "\ufe0f"
_PICTURE = f"[{EMOJI}{TONES}][{TONES}]?"
SEQUENCE = re.compile(f"([{EMOJI}][{TONES}{VARIATION}]*(?:{JOINER}[{EMOJI}][{TONES}{VARIATION}]*)+)")
SPECIAL = re.compile(f"{CHARACTER.pattern}|[{FLAGS}]{{1,2}}|{_PICTURE}(?:{JOINER}{_PICTURE})*")
KEPT = re.compile(f"[{EMOJI}{TONES}{FLAGS}]")
_VOWELS = "aeiouhàâäæáéèêëíìîïóòôöœúùûüÿ"
# the first character is a plain one, so that texts without it are passed over quickly
ELISION = re.compile(
    rf"'(?=[{_VOWELS}]|y(?!ou))"
    r"(?:(?<=[cdjlmnst]')(?<![^ '][cdjlmnst]')|(?<=qu')|(?<=ll')|(?<=un')|(?<=est')|(?<=cos')|(?<=dov')|(?<=com')|(?<=anch'))"
)
# what is one word, in a line in which everything but letters, apostrophes and emoji is a space
WORD = re.compile(
    rf"{SPECIAL.pattern}|[^ '{SPACELESS}{EMOJI}{TONES}{FLAGS}]+(?:'+[^ '{SPACELESS}{EMOJI}{TONES}{FLAGS}]+)*"
)
# categories that belong to the character before them
_FOLLOWING = ("Mn", "Mc", "Me", "Cf")


class _Letters(dict[int, str | None]):
    """For `str.translate`: filled while characters are met, because Unicode is large and texts are not."""

    def __init__(self, version: int) -> None:
        self.version = version

    def __missing__(self, code: int) -> str | None:
        self[code] = self._plain(chr(code)) if self.version == 1 else self._any(chr(code))
        return self[code]

    def _plain(self, sign: str) -> str:
        return "'" if sign in APOSTROPHES[:4] else sign if is_letter(sign) else " "

    def _any(self, sign: str) -> str | None:
        if sign in APOSTROPHES:
            return "'"
        if KEPT.match(sign):
            return sign
        if (
            sign
            in "\u0640\ufe00\ufe01\ufe02\ufe03\ufe04\ufe05\ufe06\ufe07\ufe08\ufe09\ufe0a\ufe0b\ufe0c\ufe0d\ufe0e\ufe0f"
        ):
            return None
        if unicodedata.category(sign) == "Cf" or "\U000e0100" <= sign <= "\U000e01ef":
            return " " if sign == "\u200b" else None
        if not is_letter(sign):
            return " "
        form = unicodedata.normalize("NFKC", sign).lower()
        return form if all(map(is_letter, form)) else sign


def is_letter(sign: str) -> bool:
    # marks belong to their letters: without them words of Hindi, Thai or decomposed French would break
    return sign.isalnum() or unicodedata.category(sign).startswith("M")


LETTERS = {1: _Letters(1), 2: _Letters(2)}
ASCII = bytes(ord(LETTERS[1][code] or " ") for code in range(128)).lower() + bytes(128)


class Places(NamedTuple):
    """The characters `text[start:stop]` that each word or token of the texts was made of."""

    starts: NDArray[np.int64]  # (all words,)
    stops: NDArray[np.int64]  # (all words,)


def split_words(texts: Iterable[str], version: int = 2) -> TokenSequences:
    """Split every text and number the distinct words in the order of their appearance.

    What follows (stop words, stems, pieces) depends on one word only, so it need be done once per distinct word.
    """
    return TokenSequences.from_names(
        [_split(_line(text, version), version) for text in chunk] for chunk in text_chunks(texts)
    )


def place_words(texts: Sequence[str], version: int = 2) -> tuple[TokenSequences, Places]:
    """The words of `split_words`, and where they stand."""
    rows, starts, stops = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for text in texts:
        line = _line(text, version)
        rows.append(_split(line, version))
        begin, end = _spans(line, version)
        first, after = _origins(text, line, version)
        starts.append(first[begin])
        stops.append(after[end - 1])
    return TokenSequences.from_names([rows]), Places(np.concatenate(starts), np.concatenate(stops))


def _spans(line: str, version: int) -> NDArray[np.int64]:
    """Where the words of a line begin and end, (2, words)."""
    if version > 1 and not line.isascii():
        return np.array([match.span() for match in WORD.finditer(line)], np.int64).reshape(-1, 2).T
    # one byte per character: of letters outside ASCII only the number matters here
    codes = np.frombuffer(line.encode("ascii", "replace"), np.uint8)
    kept = np.flatnonzero(codes != ord("'"))
    edges = np.flatnonzero(np.diff(codes[kept] != ord(" "), prepend=False, append=False))
    return np.stack([kept[edges[::2]], kept[edges[1::2] - 1] + 1])


def has_markup(text: str) -> bool:
    """Whether a text holds HTML tags or character references, which are no words."""
    return ("<" in text and MARKUP.search(text) is not None) or ("&" in text and REFERENCE.search(text) is not None)


def reach(word: str) -> int:
    """How many neighbors of its kind count together with a word: more than one for characters of scripts without spaces."""
    return 1 if word.isascii() else next((number for pattern, number in REACH if pattern.fullmatch(word)), 1)


def _line(text: str, version: int) -> str:
    """Lower-case words, apostrophes, emoji and spaces."""
    if version > 1 and "&" in text:
        text = REFERENCE.sub(lambda match: html.unescape(match.group()), text)
    if "<" in text:
        text = (HTML_BREAK if version == 1 else MARKUP).sub(lambda match: " " * len(match.group()), text)
    line = text.encode().translate(ASCII).decode() if text.isascii() else _keep_letters(text, version)
    return ELISION.sub(" ", line) if version > 1 and "'" in line else line


def _keep_letters(text: str, version: int) -> str:
    """Steps 2 to 4 of the rule."""
    if version == 1:
        return text.lower().translate(LETTERS[1])
    text = unicodedata.normalize("NFC", text).replace("İ", "i").lower()
    # every second piece is a sequence of joined emoji
    pieces = SEQUENCE.split(text) if JOINER in text else [text]
    pieces[::2] = [piece.translate(LETTERS[2]) for piece in pieces[::2]]
    return unicodedata.normalize("NFC", "".join(pieces).replace(VARIATION, ""))


def _split(line: str, version: int) -> list[str]:
    if version > 1 and not line.isascii() and SPECIAL.search(line):
        line = SPECIAL.sub(r" \g<0> ", line)
    return line.replace("'", "").split()


def _origins(text: str, line: str, version: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in the text the source of each character of its line begins and ends."""
    places = np.arange(max(len(text), len(line)) + 1).clip(max=len(text))
    if len(line) == len(text) and text.isascii():
        return places[:-1], places[1:]
    groups = [*REFERENCE.finditer(text), *SEQUENCE.finditer(text)] if version > 1 else []
    inside = {place for match in groups for place in range(match.start() + 1, match.end())}
    begins = [i for i, sign in enumerate(text) if not i or version == 1 or not (i in inside or _follows(sign))]
    edges = np.array([*begins, len(text)], np.int64)
    sizes = [_size(text[start:stop], version) for start, stop in pairwise(edges.tolist())]
    if sum(sizes) != len(line):  # characters that compose in a way of their own: the place is then a guess
        return places[:-1], places[1:]
    return np.repeat(edges[:-1], sizes), np.repeat(edges[1:], sizes)


@lru_cache(1 << 16)
def _size(cluster: str, version: int) -> int:
    return len(_line(cluster, version))


def _follows(sign: str) -> bool:
    """Whether a character may become one with that before it: a mark, something invisible, the rest of a Hangul syllable."""
    if sign == "\u200b":
        return False
    return unicodedata.category(sign) in _FOLLOWING or "\u1160" <= sign <= "\u11ff" or sign in "\uff9e\uff9f"


def text_chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts, some at a time, so that a stream of them is never in memory as a whole."""
    if isinstance(texts, str):
        raise ValueError(f"{texts[:30]!r} is one text; a list of texts is expected")
    source = iter(texts)
    first = 0
    while chunk := list(islice(source, CHUNK)):
        for i, text in enumerate(chunk):
            if not isinstance(text, str):
                raise ValueError(f"text {first + i} is of type {type(text).__name__}; texts must be strings")
        yield chunk
        first += len(chunk)
