"""Compiled singular value decomposition of small matrices, their polar factor, and its approximation by Newton and Schulz.

One-sided Jacobi rotations: for the sizes of one head it is faster than a call of LAPACK, and as accurate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

RANK = 1e-14  # singular values below this share of the largest are rounding: the polar factor leaves them out
_ORTHOGONAL = 1e-15
_MOST_SWEEPS = 40
QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of Muon's iteration, as in torch.optim.Muon


@njit(cache=True, nogil=True)
def thin_svd(matrix: Any) -> tuple[Any, Any, Any]:
    """Singular triples of a matrix (r, c): left (k, r), values (k,), right (k, c), k = min(r, c), in no order.

    Left vectors of singular values that are zero are zero.
    """
    if matrix.shape[0] < matrix.shape[1]:
        right, values, left = thin_svd_tall(matrix.T.copy())
        return left, values, right
    return thin_svd_tall(matrix.copy())  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def thin_svd_tall(matrix: Any) -> tuple[Any, Any, Any]:
    """`thin_svd` of a matrix with no more columns than rows."""
    columns = matrix.T.copy()  # rotated against each other until they are orthogonal
    count = len(columns)
    rotations = np.eye(count)
    for _ in range(_MOST_SWEEPS):
        if not _sweep(columns, rotations):
            break
    values = np.empty(count)
    for j in range(count):
        values[j] = math.sqrt(np.dot(columns[j], columns[j]))
        if values[j] > 0.0:
            columns[j] /= values[j]
    return columns, values, rotations


@njit(cache=True, nogil=True)
def _sweep(columns: Any, rotations: Any) -> bool:
    """Rotate every pair of columns once; return whether any was not yet orthogonal."""
    count, moved = len(columns), False
    sizes = np.empty(count)
    for i in range(count):
        sizes[i] = np.dot(columns[i], columns[i])
    negligible = (0.01 * RANK) ** 2 * sizes.max()  # columns of rounding only need not be orthogonal
    for i in range(count - 1):
        for j in range(i + 1, count):
            if min(sizes[i], sizes[j]) <= negligible:
                continue
            product = np.dot(columns[i], columns[j])
            if abs(product) <= _ORTHOGONAL * math.sqrt(sizes[i] * sizes[j]):
                continue
            moved = True
            slope = (sizes[j] - sizes[i]) / (2.0 * product)
            tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1.0 + slope * slope))
            cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
            _rotate(columns, i, j, cosine, cosine * tangent)
            _rotate(rotations, i, j, cosine, cosine * tangent)
            sizes[i] = np.dot(columns[i], columns[i])
            sizes[j] = np.dot(columns[j], columns[j])
    return moved


@njit(cache=True, nogil=True)
def _rotate(rows: Any, i: int, j: int, cosine: float, sine: float) -> None:
    for k in range(rows.shape[1]):
        one, other = rows[i, k], rows[j, k]
        rows[i, k] = cosine * one - sine * other
        rows[j, k] = sine * one + cosine * other


@njit(cache=True, nogil=True)
def with_values(left: Any, values: Any, right: Any) -> Any:
    """The matrix with these singular triples."""
    return np.dot((values.reshape(-1, 1) * left).T, right)


@njit(cache=True, nogil=True)
def polar_factor(matrix: Any) -> Any:
    """U V^T of the singular value decomposition U S V^T: the steepest direction of the spectral norm."""
    left, values, right = thin_svd(matrix)
    return with_values(left, (values > RANK * values.max()).astype(np.float64), right)


@njit(cache=True, nogil=True)
def newton_schulz(matrix: Any, steps: int) -> Any:
    """Muon's approximation of the polar factor of a matrix whose norm is at most one: singular values near 0.7 to 1.2."""
    first, second, third = QUINTIC
    wide = matrix.shape[0] <= matrix.shape[1]
    found = matrix.copy() if wide else matrix.T.copy()
    for _ in range(steps):
        gram = np.dot(found, found.T)
        found = first * found + np.dot(second * gram + third * np.dot(gram, gram), found)
    return found if wide else found.T.copy()
