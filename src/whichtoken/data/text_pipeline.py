"""Raw texts to token counts: stop words, stems and word pieces, done once per distinct word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.checks import check_count
from whichtoken.data.count_cache import cached_counts
from whichtoken.data.reading import read_text, shown
from whichtoken.data.stop_words import ENGLISH_STOP_WORDS
from whichtoken.data.token_counts import TokenCounts
from whichtoken.data.token_sequences import NGramTable, TokenSequences
from whichtoken.data.word_split import APOSTROPHES, Places, Words, place_words, split_words
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError

UNKNOWN = "[UNK]"


@dataclass(frozen=True)
class TextPipeline(Shown):
    """How texts become tokens.

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
    max_tokens : int, optional
        Keep the first tokens of each text only; None keeps all.
    unknown : {"keep", "drop"}, default="keep"
        "keep" or "drop" the piece [UNK] of words that the vocabulary file cannot spell.
    ngrams : int, default=1
        1, 2 or 3: also pairs, also triples of neighbouring tokens.

    Examples
    --------
    >>> from whichtoken.data import TextPipeline, prepare
    >>> pipeline = TextPipeline(least_count=1)
    >>> prepare(["The films were good", "a bad film"], [1, -1], pipeline).vocabulary  # stems, without stop words
    ('bad', 'film', 'good')
    """

    word_pieces: Path | str | Sequence[str] | None = None
    stop_words: Sequence[str] = ENGLISH_STOP_WORDS
    stemmer: str | None = "english"
    least_count: int = 50
    max_tokens: int | None = None
    unknown: Literal["keep", "drop"] = "keep"
    ngrams: int = 1

    def __post_init__(self) -> None:
        check_count("least_count", self.least_count, 1)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens, 1)
        if self.ngrams not in (1, 2, 3):
            raise ValueError(f"ngrams={self.ngrams} must be 1, 2 or 3")
        if self.unknown not in ("keep", "drop"):
            raise ValueError(f"unknown={self.unknown!r} must be 'keep' or 'drop'")
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
        vocabulary = (tokens if fit_on is None else tokens.rows(fit_on)).frequent(self.ngrams, self.least_count)
        if not vocabulary:
            raise ValueError(
                f"least_count={self.least_count} removes every token of {len(tokens.lengths)} texts; lower it"
            )
        fitted = FittedPipeline(self, vocabulary)
        return fitted, fitted.table.count(tokens)

    def pieces(self, words: Sequence[str]) -> list[list[str]]:
        """Tokens of each word; none for a stop word."""
        kept = [word for word in words if word not in self._stopped]
        stems = dict(zip(kept, self._stem(kept), strict=True))
        spelled = self._spell(list(dict.fromkeys(stems.values())))
        return [spelled[stems[word]] if word in stems else [] for word in words]

    @cached_property
    def _stopped(self) -> frozenset[str]:
        deleted = str.maketrans("", "", APOSTROPHES)
        return frozenset(self.stop_words) | {word.translate(deleted) for word in self.stop_words}

    def _stem(self, words: list[str]) -> list[str]:
        if self.stemmer is None:
            return words
        import Stemmer

        if self.stemmer not in Stemmer.algorithms():
            raise ValueError(f"stemmer={self.stemmer!r} must be None or one of {', '.join(Stemmer.algorithms())}")
        return list(Stemmer.Stemmer(self.stemmer, 0).stemWords(words))  # 0: no cache, the words are distinct

    def _spell(self, stems: list[str]) -> dict[str, list[str]]:
        if self.word_pieces is None:
            return {stem: [stem] for stem in stems}
        encodings = self._tokenizer.encode_batch(stems, add_special_tokens=False)
        drop = UNKNOWN if self.unknown == "drop" else None
        return {
            stem: [piece for piece in code.tokens if piece != drop] for stem, code in zip(stems, encodings, strict=True)
        }

    @cached_property
    def spelling(self) -> tuple[str, ...]:
        """The word pieces, none if stems are the tokens."""
        if isinstance(self.word_pieces, str | Path):
            return read_word_pieces(Path(self.word_pieces))
        return tuple(self.word_pieces or ())

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        vocabulary = {piece: number for number, piece in enumerate(self.spelling)}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def tokens(self, texts: Iterable[str]) -> TokenSequences:
        """Tokens of every text, in order, before the purge."""
        sequences = self._spelled(split_words(texts))[0]
        return sequences if self.max_tokens is None else sequences.truncate(self.max_tokens)

    def place(self, texts: Sequence[str]) -> tuple[TokenSequences, Places]:
        """The same tokens, each with the place of the word that it came from."""
        words, places = place_words(texts)
        sequences, sizes = self._spelled(words)
        starts, stops = (np.repeat(part, sizes[words.ids]) for part in places)
        if self.max_tokens is not None:
            kept = sequences.positions < self.max_tokens
            sequences, starts, stops = sequences.truncate(self.max_tokens), starts[kept], stops[kept]
        return sequences, Places(starts, stops)

    def _spelled(self, words: Words) -> tuple[TokenSequences, NDArray[np.int64]]:
        """Tokens of words, and the number of tokens that each distinct word becomes."""
        spelled = self.pieces(words.distinct)
        names: dict[str, int] = {}
        flat = np.array([names.setdefault(piece, len(names)) for pieces in spelled for piece in pieces], np.int32)
        sizes = np.fromiter(map(len, spelled), np.int64, len(spelled))
        return TokenSequences(words.ids, words.lengths, []).expand(flat, sizes, list(names)), sizes


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
    texts: Sequence[str],
    labels: ArrayLike,
    pipeline: TextPipeline | None = None,
    *,
    fit_on: ArrayLike | None = None,
    cache: Path | None = None,
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
    cache : Path, optional
        File that keeps the result; it is used again as long as texts, labels and options are the same.

    Returns
    -------
    TokenCounts
        Counts, labels and vocabulary.

    Examples
    --------
    >>> from whichtoken.data import TextPipeline, prepare
    >>> data = prepare(["good, good film", "bad film"], [1, -1], TextPipeline(least_count=1))
    >>> data.vocabulary, data.counts.toarray().tolist()
    (('bad', 'film', 'good'), [[0, 1, 2], [1, 1, 0]])
    """
    chosen = TextPipeline() if pipeline is None else pipeline
    # a table's column prints only its ends, which is no fingerprint
    texts, labels, fit_on = list(texts), np.asarray(labels), None if fit_on is None else np.asarray(fit_on)

    def compute() -> TokenCounts:
        fitted, counts = chosen.fit_transform(texts, fit_on)
        return TokenCounts(counts, labels, fitted.vocabulary)

    if cache is None:
        return compute()
    # the fields, as what a pipeline prints of itself is shortened
    return cached_counts(Path(cache), compute, texts, labels, fit_on, astuple(chosen), chosen.spelling)
