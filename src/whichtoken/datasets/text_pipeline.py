"""Raw texts to token counts: words, stop words, stems and word pieces, looked up once per distinct word."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer

from whichtoken.checks import check_count
from whichtoken.datasets.token_counts import NGramTable, TokenCounts, TokenSequences
from whichtoken.datasets.word_split import APOSTROPHES, Places, place_words, reach, split_words
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.reading import read_text, shown

_LANGUAGES = tomllib.loads(files(__package__).joinpath("languages.toml").read_text(encoding="utf-8"))
ENGLISH_STOP_WORDS: tuple[str, ...] = tuple(_LANGUAGES["english_stop_words"].split())
SAME_LANGUAGE = {"porter": "english", "dutch_porter": "dutch"}
ENOUGH_WORDS, ANOTHER = 100, 0.1  # words to tell a language by; share of those in its script, or of its short words


UNKNOWN = "[UNK]"


@dataclass(frozen=True)
class TextPipeline(Shown):
    """How texts become tokens.

    Reach for it to turn texts into the token counts of the paper, or of your own choice; `TextClassifier` needs none.

    The defaults are those of Wu, Shevchenko, Oymak, Mondelli, "Attention with Trained Embeddings Provably Selects Important
    Tokens", appendix E, where that says; each choice that it leaves open is an option.

    Parameters
    ----------
    word_pieces : Path or str or sequence of str, optional
        File of a WordPiece vocabulary, one piece per line (BERT's vocab.txt), or its pieces; without, stems are the
        tokens.
    stop_words : sequence of str, optional
        Words to drop, also in the form without apostrophe.
    stemmer : str, default="english"
        Language of the Snowball stemmer ("english", "german", ...), or None.
    least_count : int, default=50
        Tokens that occur less often in the texts that fix the vocabulary are purged.
    ngrams : int, default=1
        1, 2 or 3: also pairs, also triples of neighboring tokens.
    words : int, default=1
        1: runs of letters, digits and marks, between anything else. 2: the words of `TextClassifier`, in any script, as
        `whichtoken.datasets.word_split` describes them.

    Examples
    --------
    >>> from whichtoken.datasets import TextPipeline, prepare
    >>> pipeline = TextPipeline(least_count=1)
    >>> prepare(["The films were good", "a bad film"], [1, -1], pipeline).vocabulary  # stems, without stop words
    ('bad', 'film', 'good')
    """

    word_pieces: Path | str | Sequence[str] | None = None
    stop_words: Sequence[str] = ENGLISH_STOP_WORDS
    stemmer: str | None = "english"
    least_count: int = 50
    ngrams: int = 1
    words: int = 1

    def __post_init__(self) -> None:
        check_count("least_count", self.least_count, 1)
        if self.ngrams not in (1, 2, 3):
            raise ValueError(f"ngrams={self.ngrams} must be 1, 2 or 3")
        if self.words not in (1, 2):
            raise ValueError(f"words={self.words} must be 1 or 2")
        if isinstance(self.stop_words, str):
            raise ValueError(f"stop_words={self.stop_words!r} must be a list of words, empty for none")
        if not isinstance(self.word_pieces, str | Path | None) and UNKNOWN not in self.word_pieces:
            raise ValueError(
                f"word_pieces of {len(self.word_pieces)} pieces must hold {UNKNOWN}, for words that they cannot spell"
            )
        object.__setattr__(self, "stop_words", tuple(self.stop_words))
        self._stem([])

    def fit(self, texts: Iterable[str]) -> FittedPipeline:
        """Fix the vocabulary on texts."""
        return self.fit_transform(texts)[0]

    def fit_transform(
        self, texts: Iterable[str], fit_on: ArrayLike | None = None
    ) -> tuple[FittedPipeline, sparse.csr_array]:
        """Fix the vocabulary on the texts of rows `fit_on` (default all) and count tokens (n, |S|) in all of them."""
        tokens = self.tokens(texts)
        vocabulary = (tokens if fit_on is None else tokens.rows(fit_on)).frequent(
            self.ngrams, self.least_count, reach=self.reach
        )
        if not vocabulary:
            raise ValueError(
                f"least_count={self.least_count} removes every token of {len(tokens.lengths)} texts; lower it"
            )
        fitted = FittedPipeline(self, vocabulary)
        return fitted, fitted.table.count(tokens)

    @property
    def reach(self) -> Callable[[str], int] | None:
        """How many neighbors of a token count together with it, whatever `ngrams` says."""
        return reach if self.words > 1 else None

    def pieces(self, words: Sequence[str]) -> list[list[str]]:
        """Tokens of each word; none for a stop word."""
        kept = [word for word in words if word not in self._stop_forms]
        stems = dict(zip(kept, self._stem(kept), strict=True))
        spelled = self._spell(list(dict.fromkeys(stems.values())))
        return [spelled[stems[word]] if word in stems else [] for word in words]

    @cached_property
    def _stop_forms(self) -> frozenset[str]:
        deleted = str.maketrans("", "", APOSTROPHES)
        return frozenset(self.stop_words) | {word.translate(deleted) for word in self.stop_words}

    def _stem(self, words: list[str]) -> list[str]:
        if self.stemmer is None:
            return words
        import Stemmer

        if self.stemmer not in Stemmer.algorithms():
            raise UsageError(
                f"{{stemmer}} must be one of {', '.join(Stemmer.algorithms())}, or left out", stemmer=self.stemmer
            )
        return list(Stemmer.Stemmer(self.stemmer, 0).stemWords(words))  # 0: no cache, the words are distinct

    def check_language(self, tokens: TokenSequences) -> None:
        """Refuse a stemmer where the tokens are clearly those of another script or language."""
        if self.stemmer is None or self.word_pieces is not None:
            return
        counts, script = (
            tokens.occurrences,
            _LANGUAGES["scripts"].get(self.stemmer, "LATIN"),
        )
        letters = [unicodedata.name(name[:1], "") if name[:1].isalpha() else None for name in tokens.names]
        words = counts[[letter is not None for letter in letters]].sum()
        known = counts[[letter is not None and letter.startswith(script) for letter in letters]].sum()
        if words < ENOUGH_WORDS:
            return
        if known < ANOTHER * words:
            raise UsageError(
                f"{{stemmer}} is for {script.lower() or 'its own'} letters, and {known} of {words} words of the texts have such;"
                " choose the language of the texts, or no stemmer", stemmer=self.stemmer
            )  # fmt: skip
        place = dict(zip(tokens.names, counts.tolist(), strict=True))
        shares = {
            language: sum(place.get(stem, 0) for stem in set(self._stem(listed.split()))) / words
            for language, listed in _LANGUAGES["words"].items()
        }
        own, likely = SAME_LANGUAGE.get(self.stemmer, self.stemmer), max(shares, key=shares.__getitem__)
        if own in shares and shares[likely] > ANOTHER and shares[own] < shares[likely] / 4:
            raise UsageError(
                f"{{stemmer}} does not fit the texts, which look like {likely}: its most frequent short words are"
                f" {shares[likely]:.0%} of all words, those of {own} {shares[own]:.0%}; choose {likely}, or no stemmer",
                stemmer=self.stemmer,
            )

    def _spell(self, stems: list[str]) -> dict[str, list[str]]:
        if self.word_pieces is None:
            return {stem: [stem] for stem in stems}
        encodings = self._tokenizer.encode_batch(stems, add_special_tokens=False)
        return {stem: code.tokens for stem, code in zip(stems, encodings, strict=True)}

    @cached_property
    def spelling(self) -> tuple[str, ...]:
        """The word pieces, none if stems are the tokens."""
        if isinstance(self.word_pieces, str | Path):
            return read_word_pieces(Path(self.word_pieces))
        return tuple(self.word_pieces or ())

    @cached_property
    def _tokenizer(self) -> Any:
        vocabulary = {piece: number for number, piece in enumerate(self.spelling)}
        tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order, before the purge."""
        return self._spell_words(split_words(texts, self.words))[0]

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The same tokens, each with the place of the word that it came from."""
        words, places = place_words(texts, self.words)
        sequences, sizes = self._spell_words(words)
        starts, stops = (np.repeat(part, sizes[words.ids]) for part in places)
        return sequences, Places(starts, stops)

    def _spell_words(self, words: TokenSequences) -> tuple[TokenSequences, NDArray[np.int64]]:
        """Tokens of words, and the number of tokens that each distinct word becomes."""
        spelled = self.pieces(words.names)
        names: dict[str, int] = {}
        flat = np.array([names.setdefault(piece, len(names)) for pieces in spelled for piece in pieces], np.int32)
        sizes = np.fromiter(map(len, spelled), np.int64, len(spelled))
        return words.expand(flat, sizes, list(names)), sizes


def read_word_pieces(path: Path) -> tuple[str, ...]:
    """The pieces of a WordPiece vocabulary file: its lines, in order."""
    lines = read_text(path, "a WordPiece vocabulary").split("\n")
    pieces = tuple(line for line in lines if line.strip())
    if UNKNOWN not in pieces:
        raise UsageError(
            f"{shown(path)} is not a WordPiece vocabulary: it has no line {UNKNOWN}; give a file such as BERT's vocab.txt, "
            "one piece per line"
        )
    return pieces


@dataclass(frozen=True)
class FittedPipeline(Shown):
    """A pipeline whose vocabulary is fixed: counts the tokens of new texts."""

    pipeline: TextPipeline
    vocabulary: tuple[str, ...]  # n-grams are joined by a space

    @cached_property
    def table(self) -> NGramTable:
        """Where n-grams are counted."""
        return NGramTable(self.vocabulary)

    def transform(self, texts: Iterable[str]) -> sparse.csr_array:
        """Counts (n, |S|); tokens outside the vocabulary are left out."""
        return self.table.count(self.pipeline.tokens(texts))


def prepare(
    texts: Sequence[str], labels: ArrayLike, pipeline: TextPipeline | None = None, *, fit_on: ArrayLike | None = None
) -> TokenCounts:
    """Counts, labels and vocabulary of texts.

    Parameters
    ----------
    texts : sequence of str
        n texts.
    labels : array_like of shape (n,)
        -1 or +1.
    pipeline : TextPipeline, optional
        How texts become tokens; `TextPipeline()` unless given.
    fit_on : array_like, optional
        Rows that fix the vocabulary (for strict test numbers: those of the training part); all by default.

    Returns
    -------
    TokenCounts
        Counts, labels and vocabulary.

    Examples
    --------
    >>> from whichtoken.datasets import TextPipeline, prepare
    >>> data = prepare(["good, good film", "bad film"], [1, -1], TextPipeline(least_count=1))
    >>> data.vocabulary, data.counts.toarray().tolist()
    (('bad', 'film', 'good'), [[0, 1, 2], [1, 1, 0]])
    """
    chosen = TextPipeline() if pipeline is None else pipeline
    fitted, counts = chosen.fit_transform(texts, fit_on)
    return TokenCounts(counts, np.asarray(labels), fitted.vocabulary)


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_CHARACTERS_PER_TOKEN = 10  # twice that of ordinary text: the rest of a long one need not be split


class PivotCodes(NamedTuple):
    """One sentence, and where its pivot word stands."""

    codes: NDArray[np.int64]  # (length,), [CLS] first and [SEP] last
    place: int


class TokenCodes:
    """Lower-case words or word pieces as whole numbers; 0 is padding, [CLS] opens a text and [SEP] ends it.

    Reach for it to feed texts to a network of your own, as rows of equal length.

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
    >>> from whichtoken.datasets import TokenCodes
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
