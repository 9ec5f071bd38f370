"""Detectors that know the signal's direction: scores of sequences by their tokens along it, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]  # tokens (n, L) to scores (n,), larger for positives

CHUNK_FLOATS = 1 << 20


def draw_scores(
    statistics: Mapping[str, Statistic],
    length: int,
    signal_tokens: int,
    strength: float,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, tuple[Array, Array]]:
    """Scores of positive and of negative sequences, (draws,) each, by every statistic; tokens pass in chunks."""
    found: dict[str, tuple[list[Array], list[Array]]] = {name: ([], []) for name in statistics}
    rows = max(1, CHUNK_FLOATS // length)
    for start in range(0, draws, rows):
        for label in (0, 1):
            tokens = rng.standard_normal((min(rows, draws - start), length))
            if label == 0:
                tokens[:, :signal_tokens] += strength
            for name, statistic in statistics.items():
                found[name][label].append(statistic(tokens))
    return {name: (np.concatenate(positive), np.concatenate(negative)) for name, (positive, negative) in found.items()}


def attention(inverse_temperature: float) -> Statistic:
    """Mean token under softmax attention along the signal."""
    return partial(_attention, inverse_temperature)


def _attention(inverse_temperature: float, tokens: Array) -> Array:
    from whichtoken.attention import pool_outputs

    starts = np.arange(0, tokens.size + 1, tokens.shape[1])
    return np.asarray(pool_outputs(inverse_temperature * tokens.ravel(), tokens.ravel(), starts), dtype=float)


def mean(tokens: Array) -> Array:
    average: Array = tokens.mean(axis=1)
    return average


def best_threshold(positive: Array, negative: Array) -> tuple[float, float]:
    """Least error of a cut, at equal prevalence, and the cut: halfway between two neighbouring scores."""
    scores = np.concatenate([positive, negative])
    order = np.argsort(scores)
    missed = np.append(0, np.cumsum(order < len(positive))) / len(positive)
    alarmed = 1 - np.append(0, np.cumsum(order >= len(positive))) / len(negative)
    errors = (missed + alarmed) / 2
    cut = int(np.argmin(errors))
    ordered = np.concatenate([[scores.min() - 1], scores[order], [scores.max() + 1]])
    return float(errors[cut]), float(ordered[cut] + ordered[cut + 1]) / 2


def error_at(positive: Array, negative: Array, threshold: float) -> float:
    """Error of a cut, at equal prevalence."""
    return float(np.mean(positive <= threshold) + np.mean(negative > threshold)) / 2
