"""The curve u = sign(w) |w|^(p-1) that ties weights to dual weights, and a way to move along it.

Newton's method in w alone fails for p < 2, and in u alone for p > 2, because near zero the curve is infinitely steep in one
of the two. Here an entry moves along the tangent and returns to the curve in whichever coordinate is the flatter one, so
that the curvature it meets is bounded for every p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.norms import Vector, signed_power

# Relative to the slope at the largest weight; further out, an entry is as good as frozen in one coordinate.
SLOPES = (1e-8, 1e12)


@dataclass(frozen=True)
class PowerCurve:
    """The gradient of |w|_p^p / p as a curve, entry by entry."""

    p: float

    def dual(self, weights: Vector) -> Vector:
        return signed_power(weights, self.p - 1)

    def primal(self, dual: Vector) -> Vector:
        return signed_power(dual, 1 / (self.p - 1))

    def tangent(self, weights: Vector, dual: Vector) -> Tangent:
        magnitude = np.abs(weights)
        size = float(magnitude.max())
        slope = np.clip((self.p - 1) * np.maximum(magnitude / size, 1e-30) ** (self.p - 2), *SLOPES)
        return Tangent(self, weights, dual, slope <= 1, size ** (2 - self.p) / slope, size)


@dataclass(frozen=True)
class Tangent:
    """Tangents at the entries of a point on the curve."""

    curve: PowerCurve
    weights: Vector
    dual: Vector
    flat: NDArray[np.bool_]  # entries that return to the curve at their w, the others at their u
    inverse_slope: Vector  # dw / du
    size: float  # largest |w|

    def trusted_step(self, change: Vector) -> float:
        """The step at which an entry has moved by the size of the curve: beyond, the tangent says nothing."""
        scale = np.where(self.flat, self.inverse_slope / self.size, self.size ** (1 - self.curve.p))
        return 1 / max(float(np.max(np.abs(change) * scale)), 1.0)

    def move(self, change: Vector, step: float) -> tuple[Vector, Vector]:
        """Weights and dual weights after a step of `change` in u along the tangent."""
        weights = self.weights + step * self.inverse_slope * change
        dual = self.dual + step * change
        return np.where(self.flat, weights, self.curve.primal(dual)), np.where(
            self.flat, self.curve.dual(weights), dual
        )
