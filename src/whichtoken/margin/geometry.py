"""The norms in which margins are measured, and bounds on rounding errors.

The bounds hold for sums in any order, so for whatever BLAS does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from whichtoken.errors import unknown
from whichtoken.norms import Vector, dual_exponent, power_norm

UNIT = 2.0**-53  # half of the distance from 1 to the next float
SPARE = 8  # roundings besides those of a sum: of the difference, the product with a query, a factor, the bound itself
SMALLEST = 2.0**-1022  # below it, products lose digits


def growth(terms: int) -> float:
    """Bound on the relative error of so many roundings in a row."""
    return (terms + SPARE) * UNIT / (1 - (terms + SPARE) * UNIT)


def rounding(terms: int, magnitudes: Vector, factor: float = 1.0) -> Vector:
    """Bounds on the errors of sums of `terms` products whose absolute values add up to `magnitudes`."""
    return growth(terms) * magnitudes + (terms + SPARE) * factor * SMALLEST


def exact_difference(first: Vector, second: Vector) -> tuple[Vector, Vector]:
    """first - second as a float and the part that rounding took from it (Knuth): together they are exact."""
    difference = first - second
    lifted = difference - first
    return difference, (first - (difference - lifted)) - (second + lifted)


NORMS = ("entrywise", "schatten")


@dataclass(frozen=True)
class EntrywiseNorm:
    """The l_p norm of the entries of flattened weights."""

    p: float

    @property
    def row_exponent(self) -> float:
        """The l_p norm that, of both factors of a rank-one matrix, gives this norm of the matrix."""
        return self.p

    def dual(self) -> Self:
        return replace(self, p=dual_exponent(self.p))

    def of(self, vector: Vector) -> float:
        return power_norm(vector, self.p)

    def bracket(self, vector: Vector, error: Vector) -> tuple[float, float]:
        """Bounds on the norms of all vectors that differ from this one by no more than `error`."""
        sizes = np.abs(vector)
        return self.of(np.maximum(sizes - error, 0.0)), self.of(sizes + error)

    def rounding(self, size: int) -> float:
        """Bound on the relative error of a computed norm."""
        return growth(size)


EUCLIDEAN = EntrywiseNorm(2.0)


@dataclass(frozen=True)
class SchattenNorm:
    """The l_p norm of the singular values of flattened weights: nuclear for p = 1, Frobenius for p = 2, spectral for p = inf."""

    p: float
    shape: tuple[int, int]

    @property
    def row_exponent(self) -> float:
        return 2.0

    def dual(self) -> Self:
        return replace(self, p=dual_exponent(self.p))

    def of(self, vector: Vector) -> float:
        return power_norm(self.singular_values(vector), self.p)

    def singular_values(self, vector: Vector) -> Vector:
        # squares of the entries must not leave the range of floats
        largest = float(np.abs(vector).max()) or 1.0
        return largest * np.asarray(np.linalg.svd(vector.reshape(self.shape) / largest, compute_uv=False), dtype=float)

    def bracket(self, vector: Vector, error: Vector) -> tuple[float, float]:
        norm = self.of(vector)
        # no more than the Frobenius norm for p >= 2; below, by at most what equal singular values would make of it
        spread = power_norm(error, 2) * min(self.shape) ** max(1 / self.p - 1 / 2, 0.0)
        return max(norm - spread, 0.0), norm + spread

    def rounding(self, size: int) -> float:
        # each singular value is computed up to a modest multiple of the unit of rounding times the largest
        return growth(size) * min(self.shape)


Norm = EntrywiseNorm | SchattenNorm


def choose_norm(name: str, p: float, shape: tuple[int, ...]) -> Norm:
    """The norm of weights of the given shape by its name; p = 2 is the same for both."""
    if not p >= 1:
        raise ValueError(f"p={p} must lie in [1, inf]")
    if name not in NORMS:
        raise unknown("norm", name, NORMS)
    if name == "entrywise" or p == 2 or len(shape) < 2 or shape == (1, 1):
        return EntrywiseNorm(2.0 if name == "schatten" else p)
    return SchattenNorm(float(p), (shape[0], shape[1]))
