"""Whole words instead of pieces of words, and where they stand in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whichtoken.display.text import visible

STARTS = ("Ġ", "▁", "Ċ")  # how tokenizers mark the beginning of a word


def token_name(tokenizer: Any, token: int) -> str:
    """A token as it is written, with its word boundaries as spaces."""
    name = str(tokenizer.convert_ids_to_tokens(int(token)))
    name = tokenizer.convert_tokens_to_string([name]) if _in_bytes(tokenizer) else name.replace("▁", " ")
    return visible(name.replace("\n", "\\n"), keep="")


def _in_bytes(tokenizer: Any) -> bool:
    """Whether the pieces of a tokenizer are spelled in bytes, as those of GPT-2: then é is Ã©, and a space Ġ."""
    found = tokenizer.convert_tokens_to_ids("Ġ") if hasattr(tokenizer, "convert_tokens_to_ids") else None
    return found is not None and found != tokenizer.unk_token_id


def whole_words(tokenizer: Any, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The whole word that each token belongs to, and the number of that word in the text.

    Pieces are joined by the marks of the tokenizer: `##` before a piece that continues a word, or a mark before one that
    begins a word; pieces in bytes are decoded. Special tokens are words of their own.
    """
    names = [str(name) for name in tokenizer.convert_ids_to_tokens([int(i) for i in ids])]
    special = {int(i) for i in tokenizer.all_special_ids}
    in_bytes = _in_bytes(tokenizer)
    marked = in_bytes or any(name.startswith(STARTS) for name in names)
    numbers: list[int] = []
    for place, (name, token) in enumerate(zip(names, ids, strict=True)):
        plain = int(token) not in special and place > 0 and int(ids[place - 1]) not in special
        letter = name[:1].isalnum() or (in_bytes and not name.isascii())
        continues = name.startswith("##") or (marked and not name.startswith(STARTS) and letter)
        numbers.append(numbers[-1] if plain and continues else (numbers[-1] + 1 if numbers else 0))
    joined = [""] * (numbers[-1] + 1 if numbers else 0)
    for name, number in zip(names, numbers, strict=True):
        joined[number] += name[2:] if name.startswith("##") and joined[number] else name.lstrip("".join(STARTS))
    if in_bytes:
        joined = [tokenizer.convert_tokens_to_string([word]) for word in joined]
    shown = [visible(word, keep="") or "␣" for word in joined]
    return [shown[number] for number in numbers], numbers


def distinct_words(names: Sequence[str], *places: int) -> tuple[str, str]:
    """The words at two places; where both are the same word, with its place."""
    one, two = (names[place] for place in places)
    return (one, two) if one != two else (f"{one} at {places[0]}", f"{two} at {places[1]}")


def word_offsets(tokenizer: Any, text: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last character of the word of each token in the text; (0, 0) for special tokens and padding."""
    found = tokenizer(text, return_offsets_mapping=True, truncation=True, max_length=len(numbers))["offset_mapping"]
    padded = [(0, 0)] * (len(numbers) - len(found))
    found = [*padded, *found] if getattr(tokenizer, "padding_side", "right") == "left" else [*found, *padded]
    spans: dict[int, tuple[int, int]] = {}
    for number, (start, end) in zip(numbers, found, strict=True):
        start += len(text[start:end]) - len(text[start:end].lstrip())  # some count the space before a word
        first, last = spans.get(number, (start, end))
        spans[number] = min(first, start), max(last, end)
    return [spans[number] for number in numbers]
