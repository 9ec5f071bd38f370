"""What rounding can do at most: bounds that hold for sums in any order, so for whatever BLAS does."""

from __future__ import annotations

from whichtoken.norms import Vector

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
