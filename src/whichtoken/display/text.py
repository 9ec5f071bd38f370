"""Text from a user's files, safe to print: nothing in it can move the cursor, change colours or reverse the reading."""

from __future__ import annotations

import unicodedata

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats such as bidi marks, lone surrogates, line separators
JOINERS = "\u200c\u200d"  # parts of words and of emoji


def visible(text: str, keep: str = "\n\t") -> str:
    r"""The text with control and bidi characters written as escapes, such as \x1b and \u202e."""
    if text.isascii() and text.isprintable():
        return text
    found = {ord(sign): _escaped(sign) for sign in set(text) if _hidden(sign) and sign not in keep}
    return text.translate(found) if found else text


def _hidden(sign: str) -> bool:
    return unicodedata.category(sign) in HIDDEN and sign not in JOINERS


def _escaped(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2 rows, 3 classes."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
