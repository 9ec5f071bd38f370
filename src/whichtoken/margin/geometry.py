"""The norms in which margins are measured, with what rounding can do to each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from whichtoken.errors import unknown
from whichtoken.margin.rounding import growth
from whichtoken.norms import Vector, dual_exponent, power_norm

NORMS = ("entrywise", "schatten")


class Norm(Protocol):
    """A norm of flattened weights."""

    @property
    def p(self) -> float: ...

    @property
    def row_exponent(self) -> float:
        """The l_p norm that, of both factors of a rank-one matrix, gives this norm of the matrix."""
        ...

    def dual(self) -> Self: ...

    def of(self, vector: Vector) -> float: ...

    def bracket(self, vector: Vector, error: Vector) -> tuple[float, float]:
        """Bounds on the norms of all vectors that differ from this one by no more than `error`."""
        ...

    def rounding(self, size: int) -> float:
        """Bound on the relative error of a computed norm."""
        ...


@dataclass(frozen=True)
class EntrywiseNorm:
    """The l_p norm of the entries."""

    p: float

    @property
    def row_exponent(self) -> float:
        return self.p

    def dual(self) -> Self:
        return replace(self, p=dual_exponent(self.p))

    def of(self, vector: Vector) -> float:
        return power_norm(vector, self.p)

    def bracket(self, vector: Vector, error: Vector) -> tuple[float, float]:
        sizes = np.abs(vector)
        return self.of(np.maximum(sizes - error, 0.0)), self.of(sizes + error)

    def rounding(self, size: int) -> float:
        return growth(size)


EUCLIDEAN = EntrywiseNorm(2.0)


@dataclass(frozen=True)
class SchattenNorm:
    """The l_p norm of the singular values: nuclear for p = 1, Frobenius for p = 2, spectral for p = inf."""

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
        largest = float(np.abs(vector).max()) or 1.0  # squares of the entries shall not leave the range of floats
        return largest * np.asarray(np.linalg.svd(vector.reshape(self.shape) / largest, compute_uv=False), dtype=float)

    def bracket(self, vector: Vector, error: Vector) -> tuple[float, float]:
        norm = self.of(vector)
        # no more than the Frobenius norm for p >= 2; below, by at most what equal singular values would make of it
        spread = power_norm(error, 2) * min(self.shape) ** max(1 / self.p - 1 / 2, 0.0)
        return max(norm - spread, 0.0), norm + spread

    def rounding(self, size: int) -> float:
        # each singular value is computed up to a modest multiple of the unit of rounding times the largest
        return growth(size) * min(self.shape)


def chosen_norm(name: str, p: float, shape: tuple[int, ...]) -> Norm:
    """The norm of weights of the given shape by its name; p = 2 is the same for both."""
    if not p >= 1:
        raise ValueError(f"p={p} must lie in [1, inf]")
    if name not in NORMS:
        raise unknown("norm", name, NORMS)
    if name == "entrywise" or p == 2 or len(shape) < 2 or shape == (1, 1):
        return EntrywiseNorm(2.0 if name == "schatten" else p)
    return SchattenNorm(float(p), (shape[0], shape[1]))
