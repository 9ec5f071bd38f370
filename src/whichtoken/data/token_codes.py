"""Texts as rows of token codes, in their order: what a transformer reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer

from whichtoken.data.reading import read_text, shown
from whichtoken.errors import UsageError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_CHARACTERS_PER_TOKEN = 10  # twice that of ordinary text: the rest of a long one need not be split


class PivotCodes(NamedTuple):
    """One sentence, and where its pivot word stands."""

    codes: NDArray[np.int64]  # (length,), [CLS] first and [SEP] last
    place: int


class TokenCodes:
    """Lower-case words or word pieces as whole numbers; 0 is padding, [CLS] opens a text and [SEP] ends it.

    Parameters
    ----------
    length : int
        Tokens of a row, both marks included; longer texts are cut.
    texts : sequence of str, default=()
        Where the words come from when no vocabulary is given.
    words : int, default=10000
        Size of that vocabulary: the most frequent ones, at most this many.
    vocabulary : path, optional
        A WordPiece vocabulary, one token per line and [PAD] the first, as BERT's.

    Examples
    --------
    >>> from whichtoken.data import TokenCodes
    >>> codes = TokenCodes(length=6, texts=["a good film", "a bad film"])
    >>> codes.encode(["a film"]).shape, int(codes.encode(["a film"])[0, -1])  # 0 fills up
    ((1, 6), 0)
    """

    def __init__(
        self, length: int, *, texts: Sequence[str] = (), words: int = 10_000, vocabulary: Path | None = None
    ) -> None:
        if length < 3:
            raise ValueError(f"length={length} must be at least 3: two marks and a token")
        model = WordLevel(unk_token="[UNK]") if vocabulary is None else _word_pieces(vocabulary)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer()
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        if vocabulary is None:
            trainer = WordLevelTrainer(vocab_size=words, special_tokens=list(SPECIAL), show_progress=False)
            self._tokenizer.train_from_iterator(texts, trainer)
        marks = [(mark, self._tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        self._tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
        self._tokenizer.enable_truncation(length)
        self.length = length

    def __len__(self) -> int:
        """Number of codes."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Codes of the texts, (n, length), padded with 0; HTML line breaks count as spaces."""
        rows = np.zeros((len(texts), self.length), dtype=np.int64)
        short = [text[: _CHARACTERS_PER_TOKEN * self.length].replace("<br />", " ") for text in texts]
        for row, encoding in zip(rows, self._tokenizer.encode_batch(short), strict=True):
            row[: len(encoding.ids)] = encoding.ids
        return rows

    def pivot(self, text: str, word: str) -> PivotCodes | None:
        """A sentence and the place of a word in it; None if the word is not a single known token there."""
        encoding, code = self._tokenizer.encode(text), self._tokenizer.token_to_id(word)
        if code is None or code not in encoding.ids:
            return None
        return PivotCodes(np.array(encoding.ids), encoding.ids.index(code))


def _word_pieces(path: Path) -> WordPiece:
    tokens = read_text(path, "a WordPiece vocabulary").split("\n")
    codes = {token: code for code, token in enumerate(tokens) if token}
    if tokens[0] != "[PAD]" or not set(SPECIAL) <= codes.keys():
        raise UsageError(
            f"{shown(path)} must be a WordPiece vocabulary that begins with [PAD] and holds {', '.join(SPECIAL)}"
        )
    return WordPiece(codes, unk_token="[UNK]")
