"""l_p norms, and the signed power map between an l_p geometry and its dual."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def power_norm(vector: Vector, p: float) -> float:
    """l_p norm, 1 <= p <= inf, with the largest entry factored out so that no power overflows."""
    magnitude = np.abs(vector)
    largest = float(magnitude.max())
    if largest == 0.0 or np.isinf(p):
        return largest
    return largest * float(((magnitude / largest) ** p).sum() ** (1 / p))


def signed_power(values: ArrayLike, exponent: float) -> Vector:
    """sign(x) |x|^exponent, entry by entry: the map between parameters and duals of an l_p geometry."""
    x = np.asarray(values, dtype=np.float64)
    power: Vector = np.copysign(np.abs(x) ** exponent, x)
    return power


def row_norms(matrix: Vector, p: float) -> Vector:
    """l_p norm of every row of a matrix."""
    largest = np.abs(matrix).max(axis=1)
    norms: Vector = largest * np.linalg.norm(matrix / np.where(largest > 0, largest, 1.0)[:, None], p, axis=1)
    return norms


def dual_exponent(p: float) -> float:
    """The q with 1/p + 1/q = 1."""
    if p == 1:
        return np.inf
    return 1.0 if np.isinf(p) else p / (p - 1)
