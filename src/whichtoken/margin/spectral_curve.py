"""The curve of `margin.curve` for singular values: U has the singular vectors of W and the singular values s^(p-1).

Singular vectors turn, so there are no entries that could each return to the curve in a coordinate of their own. The sum
Z = W + U, at a scale where the largest singular value of both is one, serves as coordinate: it is as steep as the steeper of
the two and determines both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.geometry import SchattenNorm
from whichtoken.norms import Vector

# Relative to the slope at the largest weight; further out, an entry is as good as frozen in one coordinate.
SLOPES = (1e-8, 1e12)
SMALLEST = 1e-30  # singular value, relative to the largest, below which slopes change no more
BISECTIONS = 60


@dataclass(frozen=True)
class SpectralCurve:
    """The gradient of the sum of s^p / p over singular values s."""

    norm: SchattenNorm

    @property
    def p(self) -> float:
        return self.norm.p

    def largest(self, vector: Vector) -> float:
        return float(self.norm.singular_values(vector).max())

    def power(self, weights: Vector) -> float:
        """Sum of s^p, which is also <W, U> on the curve."""
        return float(np.sum(self.norm.singular_values(weights) ** self.p))

    def dual(self, weights: Vector) -> Vector:
        return self._raised(weights, self.p - 1)

    def primal(self, dual: Vector) -> Vector:
        return self._raised(dual, 1 / (self.p - 1))

    def _raised(self, vector: Vector, exponent: float) -> Vector:
        left, values, right = np.linalg.svd(vector.reshape(self.norm.shape), full_matrices=False)
        return np.asarray((left * values**exponent) @ right).ravel()

    def tangent(self, weights: Vector, dual: Vector) -> SpectralTangent:
        size = self.largest(weights)
        return self.at((weights / size + dual / size ** (self.p - 1)).reshape(self.norm.shape), size)

    def at(self, coordinate: Vector, size: float) -> SpectralTangent:
        """The point of the curve with W / size + U / size^(p-1) = coordinate."""
        left, values, right = np.linalg.svd(coordinate)
        return SpectralTangent(self, size, coordinate, left, right.T, *_split(values, self.p - 1))


def _split(values: Vector, exponent: float) -> tuple[Vector, Vector]:
    """s and u = s^exponent with s + u = values.

    The larger one, x + x^e = value with x between half the value and all of it, is found by bisection; the smaller one
    is a power of it, to full relative precision.
    """
    larger_is_s = (values <= 2) == (exponent >= 1)
    power = np.where(larger_is_s, exponent, 1 / exponent)
    low, high = values / 2, values
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = middle + middle**power > values
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(larger_is_s, low, low**power), np.where(larger_is_s, low**power, low)


@dataclass(frozen=True)
class SpectralTangent:
    """The tangent map at a point of the curve: in singular vectors it couples entry ij with ji only."""

    curve: SpectralCurve
    size: float
    coordinate: Vector
    left: Vector
    right: Vector
    weights: Vector  # singular values of W / size
    duals: Vector  # of U / size^(p-1)

    @cached_property
    def _factors(self) -> tuple[Vector, Vector]:
        """Of an entry itself and of its mirror image."""
        values = np.maximum(self.weights, SMALLEST)
        exponent = self.curve.p - 1
        slope = exponent * np.sqrt(np.outer(values, values)) ** (exponent - 1)  # where two values are almost the same
        powers = values**exponent
        distance = np.subtract.outer(values, values)
        close = np.abs(distance) <= 1e-6 * np.add.outer(values, values)
        rise = np.subtract.outer(powers, powers) / np.where(close, 1.0, distance)
        symmetric = 1 / np.clip(np.where(close, slope, rise), *SLOPES)
        turning = 1 / np.clip(np.add.outer(powers, powers) / np.add.outer(values, values), *SLOPES)
        scale = self.size ** (2 - self.curve.p) / 2
        return scale * (symmetric + turning), scale * (symmetric - turning)

    def image(self, change: Vector) -> Vector:
        """Change of W along the tangent that belongs to a change of U."""
        own, swapped = self._factors
        turned = self.left.T @ change.reshape(self.coordinate.shape) @ self.right
        return np.asarray(self.left @ (own * turned + swapped * turned.T) @ self.right.T).ravel()

    def gram(self, rows: Constraints) -> Vector:
        """<a_k, image of a_l>, (m, m)."""
        own, swapped = self._factors
        turned = replace(rows, left=rows.left @ self.left, right=rows.right @ self.right, tokens=None)
        return turned.gram(own.ravel(), swapped.ravel())

    def _along(self, change: Vector) -> Vector:
        """Change of the coordinate."""
        moved = self.image(change) / self.size + change / self.size ** (self.curve.p - 1)
        return np.asarray(moved).reshape(self.coordinate.shape)

    def trusted_step(self, change: Vector) -> float:
        """The step at which the coordinate has moved by the size of the curve: beyond, the tangent says nothing."""
        return 1 / max(float(np.linalg.norm(self._along(change), 2)), 1.0)

    def move(self, change: Vector, step: float) -> tuple[Vector, Vector]:
        """W and U after a step of `change` in U along the tangent."""
        moved = self.curve.at(self.coordinate + step * self._along(change), self.size)
        weights = (moved.left * moved.weights) @ moved.right.T * self.size
        dual = (moved.left * moved.duals) @ moved.right.T * self.size ** (self.curve.p - 1)
        return weights.ravel(), dual.ravel()
