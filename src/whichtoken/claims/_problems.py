"""Random attention problems, and the directions in which their training ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken import datasets
from whichtoken.lab import Resampled, Share

if TYPE_CHECKING:
    from whichtoken.margin import MarginCertificate

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ProblemSize:
    """Size of a random attention problem, that of the synthetic study of the source."""

    sequences: int = 6
    length: int = 8
    dim: int = 10


def draw_problem(point: Any, rng: np.random.Generator, start: float) -> tuple[datasets.AttentionProblem, Vector]:
    """Random tokens, queries, labels and decoder of the point's size, and an initial matrix with entries of size `start`."""
    problem = datasets.AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
    return problem, start * rng.standard_normal((point.dim, point.dim))


def key_query_limit(
    problem: datasets.AttentionProblem, selected: NDArray[np.int64], p: float
) -> tuple[Vector, MarginCertificate]:
    """The max-margin direction (d, d) that separates the selected tokens from all others, and its certificate."""
    from whichtoken.margin import key_query_svm

    limit = key_query_svm(problem.tokens, problem.queries, selected, p=p)
    return limit.require_direction(), limit


def decoder_limit(
    problem: datasets.AttentionProblem, selected: NDArray[np.int64], p: float
) -> tuple[Vector, float, Vector]:
    """The max-margin direction (d,) of a classifier of the selected tokens, its margin, and that of each token (n,)."""
    from whichtoken.margin.key_query import decoder_svm

    decoder, chosen = decoder_svm(problem.tokens, problem.labels, selected, p)
    direction = decoder.require_direction("classified")
    return direction, decoder.margin, chosen @ direction


def share_of_repeats(values: Vector) -> Share | Resampled:
    """The share of runs, one value per problem: exact if all values are 0 or 1, because a bootstrap of ones has no width."""
    return Share(values > 0.0) if np.isin(values, (0.0, 1.0)).all() else Resampled(values, np.mean)


def cosine(one: Vector, other: Vector) -> float:
    """Cosine of two matrices or vectors."""
    return float(np.vdot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))
