"""Where the signal tokens sit in a positive sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def check_positions(positions: ArrayLike | None, length: int, signal_tokens: int) -> Array | None:
    """Position weights as an array that sums to one; None, the uniform law, passes through."""
    if positions is None:
        return None
    weights = np.asarray(positions, dtype=float)
    if weights.shape != (length,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"positions of shape {weights.shape} must be length={length} finite weights, none negative")
    if (above := np.count_nonzero(weights)) < signal_tokens:
        raise ValueError(f"positions must have at least signal_tokens={signal_tokens} weights above 0; it has {above}")
    share: Array = weights / weights.sum()
    return share


def draw_positions(
    count: int, length: int, signal_tokens: int, weights: Array | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Distinct positions, shape (count, signal_tokens): drawn one after the other in proportion to the weights."""
    if weights is None:
        keys = rng.random((count, length))
    else:
        with np.errstate(divide="ignore"):
            keys = np.log(weights) + rng.gumbel(size=(count, length))  # the largest keys are such a draw
    return np.argpartition(keys, length - signal_tokens, axis=1)[:, length - signal_tokens :]
