"""Text from a user's files, safe to print: it cannot move the cursor, change colors or reverse the reading direction."""

from __future__ import annotations

import unicodedata

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats such as bidi marks, lone surrogates, line separators
JOINERS = "\u200c\u200d"  # parts of words and of emoji


def visible(text: str, keep: str = "\n\t") -> str:
    r"""The text with control and bidi characters written as escapes, such as \x1b and \u202e."""
    if text.isascii() and text.isprintable():
        return text
    hidden = {char for char in set(text) - set(keep + JOINERS) if unicodedata.category(char) in HIDDEN}
    return text.translate({ord(char): _escape(ord(char)) for char in hidden}) if hidden else text


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def pluralize(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 classes."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
