"""Symmetric positive definite systems, called thousands of times on small matrices: LAPACK without ceremony."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from whichtoken.norms import Vector

# Rounding in a Gram matrix; a ridge below it cannot be told from zero.
FLOOR = 1e-15


def cholesky(matrix: Vector, ridge: Vector | float) -> Callable[[Vector], Vector]:
    """Solver of (matrix + diag(ridge)) x = r; overwrites `matrix`. Raises LinAlgError if it is not positive definite."""
    if matrix.size == 0:
        return lambda r: r
    diagonal = np.einsum("ii->i", matrix)
    diagonal += ridge + FLOOR * diagonal.max()
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)  # .T is in LAPACK's order: no copy
    if failed:
        raise np.linalg.LinAlgError("not positive definite")
    return lambda r: lapack.dpotrs(factor, r, lower=1)[0]
