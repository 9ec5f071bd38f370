"""What a readout sees after attention along a query, drawn from its exact law instead of from whole tokens."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from whichtoken.attention import pool_weights
from whichtoken.checks import check_range
from whichtoken.data.sparse_tokens import SparseTokens

Array = NDArray[np.float64]


def attended_features(
    source: SparseTokens, samples: int, alignment: float, inverse_temperature: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Attention features (samples, dim) and labels, exact in distribution, `length` times cheaper than tokens.

    The coordinates are rotated: the query is the first one, the signal lies in the plane of the first two,
    (alignment, sqrt(1 - alignment^2), 0, ...).

    Parameters
    ----------
    source : SparseTokens
        The sequences.
    samples : int
        How many.
    alignment : float
        Cosine of the query and the signal, from -1 to 1.
    inverse_temperature : float
        Times the norm of the query.
    rng : numpy Generator

    Examples
    --------
    >>> source = SparseTokens(length=8, signal_tokens=2, strength=3.0, prevalence=0.5, dim=50)
    >>> features, labels = attended_features(source, 100, 0.9, 1.0, np.random.default_rng(0))
    >>> features.shape, labels.shape
    ((100, 50), (100,))
    """
    check_range("alignment", alignment, -1.0, 1.0, include_low=True, include_high=True)
    check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
    labels = source.labels(samples, rng)
    noise = rng.standard_normal((samples, source.length))
    strength = np.where(labels > 0, source.strength, 0.0)
    scores = noise.copy()
    scores[:, : source.signal_tokens] += alignment * strength[:, None]
    scores *= inverse_temperature
    starts = np.arange(0, scores.size + 1, source.length)
    attention = pool_weights(scores.ravel(), starts).reshape(scores.shape)  # (samples, length)
    signal = strength * attention[:, : source.signal_tokens].sum(axis=1)
    features = rng.standard_normal((samples, source.dim))
    features *= np.linalg.norm(attention, axis=1, keepdims=True)
    features[:, 0] = (attention * noise).sum(axis=1) + alignment * signal
    features[:, 1] += math.sqrt(1 - alignment**2) * signal
    return features, labels
