"""Proofs that no direction separates the tokens, valid for the tokens as they are given and not up to rounding.

By Farkas' lemma it takes lambda >= 0 with sum_k lambda_k a_k = 0 and sum_k lambda_k b_k > 0 (of any sign on equalities).
A solver finds one whose combination r = sum_k lambda_k a_k is rounding, which proves nothing: (1, 0) and (-1, 2^-40) add
up to almost nothing and are separated by (1, 2^41). Two ways lead from there to a vector that combines to zero exactly.

`spanning`: the rows span the space with smallest singular value sigma, so that some delta with |delta|_2 <= |r|_2 / sigma
has sum_k delta_k a_k = r. If this is below the smallest lambda, lambda - delta is positive and does what Farkas asks. No
delta need be computed, only bounds on r and sigma that rounding cannot break: sigma^2 > t because a Cholesky factor of
A^T A - t I exists even after t has been raised by all errors (Rump, BIT 46, 2006). This serves generic tokens of any size.

`rational`: delta itself in whole numbers, supported on a basis of the rows. This serves rows that span less than the space
(repeated tokens, two opposite demands), as long as they are few.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import lapack

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.exact import dyadic, exact_rows, solve_with_first_columns
from whichtoken.margin.rounding import growth, rounding
from whichtoken.norms import Vector

if TYPE_CHECKING:
    from whichtoken.margin.vocabulary import VocabularyConstraints

RATIONAL_WORK = 2**20  # entries that elimination in whole numbers may touch: about a second


def proven(constraints: Constraints | VocabularyConstraints, farkas: Vector) -> bool:
    """Whether an exact Farkas vector exists on the rows where `farkas`, one up to rounding, is not zero."""
    used = constraints.free | (farkas > 0)
    if not (np.isfinite(farkas).all() and (constraints.rhs[used] > 0).any()):
        return False
    rows, candidate = _without_queries(constraints.subset(used)), farkas[used]
    return spanning(rows, candidate) or rational(rows, candidate)


def _without_queries(rows: Constraints) -> Constraints:
    """Rows of few distinct queries in a space where these are independent: what combines to zero there, does so here."""
    distinct, number = np.unique(rows.right, axis=0, return_inverse=True)
    if len(distinct) >= rows.right.shape[1]:
        return rows
    return replace(rows, right=np.eye(len(distinct))[number.ravel()])


def spanning(rows: Constraints, candidate: Vector) -> bool:
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


def rational(rows: Constraints, candidate: Vector) -> bool:
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
