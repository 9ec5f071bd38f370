"""The part of a sentence encoder in a decision on texts: linear in the embeddings of a text's parts, added to that of the words.

f = f_words + mean over parts z of (u.z + c). A part is a run of whole sentences of at most `LONGEST` words, so what each part
adds is exact. What one word does to its part is not: it is measured by encoding the part again without the word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.datasets.sentence_encoder import Encoder, SentenceEncoder, encode_all
from whichtoken.errors import UsageError
from whichtoken.estimators.text.learning import (
    TOLERANCE,
    TRIED,
    RidgeProblem,
    Splits,
    best_temperature,
    log_loss,
    output_signs,
    solve_values,
)

if TYPE_CHECKING:
    from whichtoken.estimators.text.counting import Documents

Array = NDArray[np.float64]

LONGEST = 64  # words of a part
SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]*\s*")
C_GRID = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # of the encoder in the blend; 0 is for words alone
KEPT = 20_000  # embeddings in memory


def text_parts(text: str) -> list[tuple[int, int]]:
    """Where the parts of a text begin and end: runs of sentences with at most `LONGEST` words, or one longer sentence."""
    parts: list[tuple[int, int]] = []
    words = 0
    for found in SENTENCE.finditer(text):
        more = len(found.group().split())
        if not more:
            continue
        if parts and words + more <= LONGEST:
            parts[-1], words = (parts[-1][0], found.end()), words + more
        else:
            parts.append(found.span())
            words = more
    return parts or [(0, len(text))]


@dataclass(eq=False)
class Embeddings:
    """An encoder that remembers what it has encoded, by the hash of the text."""

    encode: Encoder
    name: str  # of the folder; empty for a function
    sha256: str
    known: dict[bytes, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, source: Any) -> Embeddings:
        """From a function, a folder or the name of a package."""
        if callable(source):
            return cls(source, "", "")
        if not isinstance(source, str | Path):
            raise UsageError(
                f"encoder of type {type(source).__name__} is not known; give a function from texts to an array, or a folder"
            )
        encoder = SentenceEncoder(source)
        return cls(encoder, str(source), encoder.sha256)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Embeddings of texts, (n, d)."""
        keys = [sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        if len(self.known) + len(new) > KEPT:
            self.known.clear()
            new = dict(zip(keys, texts, strict=True))
        if new:
            found = encode_all(self.encode, list(new.values()))
            width = {len(row) for row in self.known.values()} or {found.shape[1]}
            if width != {found.shape[1]}:
                raise UsageError(f"the encoder returned {found.shape[1]} numbers for a text, and {min(width)} before")
            self.known.update(zip(new, found.astype(np.float32), strict=True))
        return np.stack([self.known[key] for key in keys]).astype(np.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "known": {}}


@dataclass(frozen=True, eq=False)
class EncoderPart:
    """What a fitted encoder adds to the outputs of the words."""

    embeddings: Embeddings
    weights: Array  # u, (d, outputs)
    bias: Array  # c, (outputs,)
    share: float  # of the encoder in the geometric mean of the two probabilities

    def of_parts(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], Array]:
        """The text that each part belongs to, and what the part adds, (parts, outputs)."""
        owners, found = embed_parts(self.embeddings, texts)
        if found.shape[1] != len(self.weights):
            raise UsageError(
                f"the encoder returned {found.shape[1]} numbers for a text, and {len(self.weights)} in the fit"
            )
        return owners, (found @ self.weights + self.bias) / np.bincount(owners)[owners, None]

    def outputs(self, texts: Sequence[str]) -> Array:
        """What the encoder adds to the outputs of texts, (n, outputs)."""
        owners, added = self.of_parts(texts)
        return np.asarray(sparse.csr_array((np.ones(len(owners)), (owners, np.arange(len(owners))))) @ added)


def embed_parts(embeddings: Embeddings, texts: Sequence[str]) -> tuple[NDArray[np.int64], Array]:
    """The text that each part belongs to, and its embedding, (parts, d)."""
    spans = [text_parts(text) for text in texts]
    owners = np.repeat(np.arange(len(texts)), list(map(len, spans)))
    return owners, embeddings([text[a:b] for text, places in zip(texts, spans, strict=True) for a, b in places])


def fit_encoder(
    embeddings: Embeddings, texts: Sequence[str], documents: Documents, splits: Splits, words: Array
) -> tuple[EncoderPart | None, float, float, Array]:
    """The part of the encoder, the factor of the words beside it, the temperature of both, and their held-out outputs.

    There is no part where the encoder does not help.

    `words` are the outputs of the words on the texts that the splits hold out: so both halves of the blend are cross-fitted.
    """
    owners, parts = embed_parts(embeddings, texts)
    sums = np.stack([np.bincount(owners, column) for column in parts.T], axis=1)
    means = sums / np.bincount(owners)[:, None]
    mean = means.mean(axis=0)
    apart = (means - mean).astype(np.float32)
    size = max(float(np.mean(np.sum(apart**2, axis=1))), 1e-12)
    spread = np.append(np.full(means.shape[1], 1 / size), 1.0)
    nothing = sparse.csr_array((len(means), 0))

    def solve(rows: NDArray[np.int64], C: float, tolerance: float = TOLERANCE) -> tuple[Array, Array]:
        bounds = C * documents.weights
        found = [
            solve_values(RidgeProblem(nothing, rows, signs, bounds, spread=spread, dense=apart), tolerance)
            for signs in output_signs(documents)
        ]
        values = np.stack([one.values for one in found], axis=1)
        return values, np.array([one.bias for one in found]) - mean @ values

    def held_out(C: float) -> Array:
        fits = [solve(fit, C, tolerance=TRIED) for fit, _ in splits]
        return np.concatenate([means[held] @ u + c for (u, c), (_, held) in zip(fits, splits, strict=True)])

    rows = np.concatenate([held for _, held in splits])
    labels, weights = documents.labels[rows], documents.weights[rows]

    def loss(outputs: Array) -> tuple[float, float]:
        temperature = best_temperature(outputs, labels, weights)
        return log_loss(temperature * outputs, labels, weights), temperature

    tried = {C: held_out(C) for C in C_GRID}
    C = min(tried, key=lambda C: loss(tried[C])[0])
    # a weighted sum of calibrated outputs is a geometric mean of probabilities
    (_, of_words), (_, of_own) = loss(words), loss(tried[C])
    blends = {w: (1 - w) * of_words * words + w * of_own * tried[C] for w in (0.0, *SHARES)}
    share = min(blends, key=lambda w: loss(blends[w])[0])
    if not share:
        return None, 1.0, 1.0, words
    u, c = solve(np.arange(len(means)), C)
    part = EncoderPart(embeddings, share * of_own * u, share * of_own * c, share)
    return part, (1 - share) * of_words, loss(blends[share])[1], blends[share]
