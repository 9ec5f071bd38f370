"""Arithmetic without rounding, and proofs that no direction separates the tokens as they are given.

Every float is a whole number times a power of two. Python's integers grow as needed, so sums of products of such numbers are
exact at any spread of scales. An operation takes about 100 ns: for the few rows of a problem where rounding decides.

By Farkas' lemma no direction exists if some lambda >= 0 (of any sign on equalities) has sum_k lambda_k a_k = 0 and
sum_k lambda_k b_k > 0. A solver finds one whose combination r = sum_k lambda_k a_k is rounding, which proves nothing: (1, 0)
and (-1, 2^-40) add up to almost nothing and are separated by (1, 2^41). Two proofs lead from there to a vector that combines
to zero exactly.

`spanning`: the rows span the space with smallest singular value sigma, so that some delta with |delta|_2 <= |r|_2 / sigma
has sum_k delta_k a_k = r. If this is below the smallest lambda, lambda - delta is positive and does what Farkas asks. No
delta need be computed, only bounds on r and sigma that rounding cannot break: sigma^2 > t because a Cholesky factor of
A^T A - t I exists even after t has been raised by all errors (Rump, BIT 46, 2006). This serves generic tokens of any size.

`rational`: delta itself in whole numbers, supported on a basis of the rows. This serves rows that span less than the space
(repeated tokens, two opposite demands), as long as they are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from whichtoken.margin.constraints import AnyConstraints, Constraints
from whichtoken.margin.geometry import growth, rounding
from whichtoken.norms import Vector

MANTISSA_BITS = 53
RATIONAL_WORK = 2**20  # entries that elimination in whole numbers may touch: about a second


@dataclass(frozen=True)
class Dyadic:
    """digits * 2^exponent; the digits are Python integers in an array of objects."""

    digits: NDArray[Any]
    exponent: int

    def to_floats(self) -> Vector:
        """The nearest floats, to one part in 2^52."""
        flat = [_to_float(digit, self.exponent) for digit in self.digits.ravel()]
        return np.array(flat, dtype=float).reshape(self.digits.shape)


def _to_float(digit: int, exponent: int) -> float:
    surplus = max(digit.bit_length() - 64, 0)
    return math.ldexp(float(digit >> surplus), exponent + surplus)


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
    left = dyadic(np.stack([rows.left, rows.rounding_loss()]))
    right = dyadic(rows.right)
    products = left.digits.sum(axis=0)[:, :, None] * right.digits[:, None, :]
    return Dyadic(products.reshape(len(rows), rows.columns), left.exponent + right.exponent)


def exact_scores(rows: Constraints, weights: Vector) -> Vector:
    """<a_k, W>, each rounded once."""
    matrix, factor = exact_rows(rows), dyadic(weights)
    return Dyadic(matrix.digits @ factor.digits, matrix.exponent + factor.exponent).to_floats()


def exact_combination(rows: Constraints, multipliers: Vector) -> Vector:
    """sum_k mu_k a_k, each entry rounded once: zero only if it is zero."""
    matrix, factor = exact_rows(rows), dyadic(multipliers)
    return Dyadic(factor.digits @ matrix.digits, matrix.exponent + factor.exponent).to_floats()


def is_infeasible(constraints: AnyConstraints, farkas: Vector) -> bool:
    """Whether an exact Farkas vector exists on the rows where `farkas`, one up to rounding, is not zero."""
    used = constraints.free | (farkas > 0)
    if not (np.isfinite(farkas).all() and (constraints.rhs[used] > 0).any()):
        return False
    rows, candidate = constraints.subset(used), farkas[used]
    # few distinct queries are taken as independent: what combines to zero there, does so here
    distinct, number = np.unique(rows.right, axis=0, return_inverse=True)
    if len(distinct) < rows.right.shape[1]:
        rows = replace(rows, right=np.eye(len(distinct))[number.ravel()])
    return proves_by_rank(rows, candidate) or proves_in_rationals(rows, candidate)


def proves_by_rank(rows: Constraints, candidate: Vector) -> bool:
    """Proof by the smallest singular value of the rows."""
    # of a product that is too small for a float, the column stays: then it is zero here, and the proof fails
    met = (rows.left != 0)[:, :, None] & (rows.right != 0)[:, None, :]
    matrix = rows.dense[:, met.any(axis=0).ravel()]
    count, columns = matrix.shape
    if count < columns:
        return False
    # powers of two scale without rounding
    exponents = np.frexp(np.abs(matrix).max(axis=1))[1]
    matrix, candidate = np.ldexp(matrix, -exponents[:, None]), np.ldexp(candidate, exponents)
    candidate = candidate / candidate[~rows.free].sum()
    error = rounding(count, np.abs(candidate) @ np.abs(matrix))
    residual = float(np.linalg.norm(np.abs(candidate @ matrix) + error)) * (1 + growth(columns))
    size = float(np.sum(matrix**2)) * (1 + growth(count * columns))
    # the tokens' own rows differ from the written ones by one part in 2^50, so their singular values do by this
    needed = residual / float(candidate[~rows.free].min()) * (1 + growth(0)) + growth(0) * size**0.5
    errors = 2 * (growth(count) + growth(columns)) * size
    gram = matrix.T @ matrix
    np.einsum("ii->i", gram)[:] -= needed**2 * (1 + growth(0)) + errors
    _, failed = lapack.dpotrf(gram, lower=1, overwrite_a=1, clean=0)
    return bool(np.isfinite(needed) and not failed)


def proves_in_rationals(rows: Constraints, candidate: Vector) -> bool:
    """Proof by elimination in whole numbers."""
    if len(rows) * rows.columns * min(len(rows), rows.columns) > RATIONAL_WORK:
        return False
    # corrections go to equalities, which bear any, and then to the multipliers that bear most
    order = np.argsort(-np.where(rows.free, np.inf, candidate * rows.norms(2)), kind="stable")
    rows, candidate = rows.subset(order), candidate[order]
    matrix, multipliers = exact_rows(rows).digits, dyadic(candidate).digits
    correction, divisor = solve_with_first_columns(matrix.T, multipliers @ matrix)
    corrected = (multipliers * divisor - correction) * (1 if divisor > 0 else -1)
    return bool(all(corrected[~rows.free] >= 0) and any(corrected[rows.rhs > 0] > 0))


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
