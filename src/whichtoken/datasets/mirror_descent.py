"""Random token-selection problems: unit tokens and queries, binary labels, and a decoder that scores the tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count
from whichtoken.display.shown import Shown


@dataclass(frozen=True, eq=False)
class AttentionProblem(Shown):
    """What one attention head is trained on, its decoder included.

    Reach for it to train an attention head on tokens of your own with `whichtoken.flows`; `AttentionTokens` draws random ones.

    Attributes
    ----------
    tokens : array of shape (n, T, d)
        n sequences of T tokens.
    queries : array of shape (n, d)
        One query per sequence.
    labels : array of shape (n,)
        -1 or +1.
    decoder : array of shape (d,)
        The vector v that reads tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> problem = AttentionTokens().sample(np.random.default_rng(0))
    >>> problem.tokens.shape, problem.queries.shape, problem.token_scores.shape
    ((6, 8, 10), (6, 10), (6, 8))
    """

    tokens: NDArray[np.float64]
    queries: NDArray[np.float64]
    labels: NDArray[np.int64]
    decoder: NDArray[np.float64]

    def __post_init__(self) -> None:
        for field in ("tokens", "queries", "decoder"):
            array = np.asarray(getattr(self, field), dtype=np.float64)
            if not np.isfinite(array).all():
                raise ValueError(f"{field} must hold finite numbers")
            object.__setattr__(self, field, array)
        object.__setattr__(self, "labels", np.asarray(self.labels))
        shapes = [x.shape for x in (self.tokens, self.queries, self.labels, self.decoder)]
        if len(shapes[0]) != 3 or shapes[1:] != [shapes[0][::2], shapes[0][:1], shapes[0][2:]]:
            raise ValueError(
                f"shapes {shapes} must be those of tokens (n, T, d), queries (n, d), labels (n,), decoder (d,)"
            )
        if not np.isin(self.labels, (-1, 1)).all():
            raise ValueError(f"labels={np.unique(self.labels).tolist()} must be -1 or +1")

    @property
    def token_scores(self) -> NDArray[np.float64]:
        """How much each token helps its label, (n, T): y_i v.x_it."""
        return np.asarray(self.labels[:, None] * (self.tokens @ self.decoder))


@dataclass(frozen=True)
class AttentionTokens(Shown):
    """Gaussian tokens, queries and decoder on the unit sphere, labels by a fair coin.

    Reach for it when you need many small problems of token selection, whose limits can be computed.

    The synthetic data of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581.

    Parameters
    ----------
    sequences, length, dim : int
        n, T and d.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> problem = AttentionTokens(sequences=2, length=3, dim=4).sample(np.random.default_rng(0))
    >>> problem.tokens.shape, round(float(np.linalg.norm(problem.decoder)), 6)
    ((2, 3, 4), 1.0)
    """

    sequences: int = 6
    length: int = 8
    dim: int = 10

    def __post_init__(self) -> None:
        for field, least in (("sequences", 1), ("length", 2), ("dim", 1)):
            check_count(field, getattr(self, field), least)

    def sample(self, rng: np.random.Generator) -> AttentionProblem:
        """Draw decoder, labels, tokens and queries, in this order."""
        decoder = _unit(rng.standard_normal(self.dim))
        labels = np.where(rng.standard_normal(self.sequences) >= 0, 1, -1)
        tokens = _unit(rng.standard_normal((self.sequences, self.length, self.dim)))
        queries = _unit(rng.standard_normal((self.sequences, self.dim)))
        return AttentionProblem(tokens, queries, labels, decoder)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
