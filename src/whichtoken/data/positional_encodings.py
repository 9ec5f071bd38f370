"""Positional encodings p_1..p_D for groups of variables: orthogonal as the theory asks, and the usual others.

Each family returns an array of shape (groups, groups) whose row j is the encoding of group j.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from whichtoken.errors import unknown

Array = NDArray[np.float64]


def positional_encodings(
    kind: str, groups: int, norm2: float | None = None, rng: np.random.Generator | None = None
) -> Array:
    """Encodings of one family, shape (groups, groups).

    Parameters
    ----------
    kind : str
        A key of `FAMILIES`: `sine`, `one-hot`, `random`, `random-unit`, `sin-cos` or `none`.
    groups : int
        D >= 2.
    norm2 : float, optional
        Mean squared norm to scale to. By default that of the sine family, (groups + 1)/2; one-hot vectors keep norm one.
    rng : numpy.random.Generator, optional
        Needed by the random families.
    """
    if groups < 2:
        raise ValueError(f"groups={groups} must be at least 2")
    if kind not in FAMILIES:
        raise unknown("encoding", kind, FAMILIES)
    if rng is None and kind.startswith("random"):
        raise ValueError(f"encoding '{kind}' needs rng, a numpy.random.Generator")
    encodings = FAMILIES[kind](groups, rng or np.random.default_rng(0))
    if norm2 is None or kind == "none":
        return encodings
    if not (np.isfinite(norm2) and norm2 > 0):
        raise ValueError(f"norm2={norm2} must be positive and finite")
    return float(np.sqrt(norm2 / np.mean(np.sum(encodings**2, axis=1)))) * encodings


def sine(groups: int, rng: np.random.Generator) -> Array:
    """sin(pi j k/(D+1)), orthogonal with squared norm (D+1)/2."""
    index = np.arange(1, groups + 1)
    return np.sin(np.pi * np.outer(index, index) / (groups + 1))


def one_hot(groups: int, rng: np.random.Generator) -> Array:
    """The unit vectors: orthogonal with norm one."""
    return np.eye(groups)


def random(groups: int, rng: np.random.Generator) -> Array:
    """Independent normal entries, squared norm (D+1)/2 on average: neither orthogonal nor of equal norm."""
    return math.sqrt((groups + 1) / (2 * groups)) * rng.standard_normal((groups, groups))


def random_unit(groups: int, rng: np.random.Generator) -> Array:
    """Random directions of equal norm: only orthogonality is missing."""
    return _with_norm2(rng.standard_normal((groups, groups)), (groups + 1) / 2)


def sin_cos(groups: int, rng: np.random.Generator) -> Array:
    """The table of sines and cosines at geometric frequencies of Vaswani et al. 2017: neighbours are alike."""
    frequency = 10_000.0 ** (-2 * (np.arange(groups) // 2) / groups)
    angle = np.outer(np.arange(groups), frequency)
    return _with_norm2(np.where(np.arange(groups) % 2 == 0, np.sin(angle), np.cos(angle)), (groups + 1) / 2)


def none(groups: int, rng: np.random.Generator) -> Array:
    """All zero: the model cannot tell the groups apart."""
    return np.zeros((groups, groups))


FAMILIES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "sine": sine,
    "one-hot": one_hot,
    "random": random,
    "random-unit": random_unit,
    "sin-cos": sin_cos,
    "none": none,
}


def _with_norm2(rows: Array, norm2: float) -> Array:
    scaled: Array = rows * np.sqrt(norm2 / np.sum(rows**2, axis=1, keepdims=True))
    return scaled
