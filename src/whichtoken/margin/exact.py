"""Arithmetic without rounding: every float is a whole number times a power of two.

Python's integers grow as needed, so sums of products of such numbers are exact at any spread of scales. About 100 ns an
operation: for the few rows of a problem where rounding decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.constraints import Constraints
from whichtoken.norms import Vector

MANTISSA_BITS = 53


@dataclass(frozen=True)
class Dyadic:
    """digits * 2^exponent; the digits are Python integers in an array of objects."""

    digits: NDArray[Any]
    exponent: int

    def rounded(self) -> Vector:
        """The nearest floats, to one part in 2^52."""
        flat = [_rounded(digit, self.exponent) for digit in self.digits.ravel()]
        return np.array(flat, dtype=float).reshape(self.digits.shape)


def dyadic(values: Vector) -> Dyadic:
    """The same numbers, with one exponent for all of them."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=float))
    wholes = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
    shifts = np.where(wholes != 0, exponent, np.iinfo(np.int32).max)
    lowest = int(shifts.min(initial=np.iinfo(np.int32).max))
    shifted = [int(w) << int(e) - lowest if w else 0 for w, e in zip(wholes.ravel(), exponent.ravel(), strict=True)]
    digits = np.empty(wholes.size, dtype=object)
    digits[:] = shifted
    return Dyadic(digits.reshape(wholes.shape), lowest - MANTISSA_BITS if any(shifted) else 0)


def exact_rows(rows: Constraints) -> Dyadic:
    """The rows a_k as the tokens define them, (m, d e): differences of tokens and products with queries are exact."""
    left = dyadic(np.stack([rows.left, rows.lost()]))
    right = dyadic(rows.right)
    products = left.digits.sum(axis=0)[:, :, None] * right.digits[:, None, :]
    return Dyadic(products.reshape(len(rows), rows.columns), left.exponent + right.exponent)


def exact_scores(rows: Constraints, weights: Vector) -> Vector:
    """<a_k, W>, each rounded once."""
    matrix, factor = exact_rows(rows), dyadic(weights)
    return Dyadic(matrix.digits @ factor.digits, matrix.exponent + factor.exponent).rounded()


def exact_combination(rows: Constraints, multipliers: Vector) -> Vector:
    """sum_k mu_k a_k, each entry rounded once: zero only if it is zero."""
    matrix, factor = exact_rows(rows), dyadic(multipliers)
    return Dyadic(factor.digits @ matrix.digits, matrix.exponent + factor.exponent).rounded()


def solve_with_first_columns(matrix: NDArray[Any], right: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Integers x and D with matrix @ x = D * right, supported on the first independent columns; a solution must exist.

    Gauss-Jordan elimination without fractions (Bareiss): every division below is exact.
    """
    table = np.concatenate([matrix, right[:, None]], axis=1)
    pivots: list[int] = []
    divisor = 1
    for column in range(matrix.shape[1]):
        rank = len(pivots)
        candidates = np.flatnonzero(table[rank:, column])
        if candidates.size == 0:
            continue
        table[[rank, rank + candidates[0]]] = table[[rank + candidates[0], rank]]
        others = np.arange(len(table)) != rank
        pivot = table[rank, column]
        table[others] = (table[others] * pivot - table[others, column, None] * table[rank]) // divisor
        divisor = pivot
        pivots.append(column)
        if len(pivots) == len(table):
            break
    solution = np.zeros(matrix.shape[1], dtype=object)
    solution[pivots] = table[: len(pivots), -1]
    return solution, divisor


def _rounded(digit: int, exponent: int) -> float:
    surplus = max(digit.bit_length() - 64, 0)
    return math.ldexp(float(digit >> surplus), exponent + surplus)
