"""l_p norms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def power_norm(vector: Vector, p: float) -> float:
    """l_p norm, with the largest entry factored out so that no power overflows."""
    magnitude = np.abs(vector)
    largest = float(magnitude.max(initial=0.0))
    if largest == 0.0 or np.isinf(p):
        return largest
    return largest * float(np.sum((magnitude / largest) ** p) ** (1 / p))


def dual_exponent(p: float) -> float:
    """The q with 1/p + 1/q = 1."""
    if p == 1:
        return np.inf
    return 1.0 if np.isinf(p) else p / (p - 1)
