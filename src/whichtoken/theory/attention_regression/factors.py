"""The linear map of an infinite context, and the factors that make it. Symbols as in `attention_regression`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def limit_map(A: ArrayLike, B: ArrayLike, covariance: ArrayLike) -> Array:
    """A Sigma B^T (outputs, d): what the layer computes on an infinite context of Gaussian tokens of mean zero.

    Parameters
    ----------
    A : array_like of shape (outputs, d)
        Value matrix.
    B : array_like of shape (d, d)
        Key-query matrix.
    covariance : array_like of shape (d, d)
        Sigma.

    Returns
    -------
    array of shape (outputs, d)
        The linear map.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import limit_map
    >>> limit_map(np.eye(2), 2 * np.eye(2), covariance=3 * np.eye(2)).tolist()
    [[6.0, 0.0], [0.0, 6.0]]
    """
    value, key_query = factor_pair(A, B)
    result: Array = value @ np.asarray(covariance, dtype=np.float64) @ key_query.T
    return result


def population_loss(P: ArrayLike, Q: ArrayLike, target: ArrayLike) -> tuple[float, Array, Array]:
    """1/2 |P Q^T - Y|_F^2 and its gradients in P and Q.

    Parameters
    ----------
    P, Q : array_like of shape (outputs, d) and (d, d)
        Whitened factors.
    target : array_like of shape (outputs, d)
        Y.

    Returns
    -------
    tuple
        Loss, gradient in P, gradient in Q.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import population_loss
    >>> loss, slope_P, slope_Q = population_loss(np.eye(2), np.eye(2), target=3 * np.eye(2))
    >>> loss, slope_P.tolist()
    (4.0, [[-2.0, 0.0], [0.0, -2.0]])
    """
    value, key_query = factor_pair(P, Q)
    error = value @ key_query.T - np.asarray(target, dtype=np.float64)
    return 0.5 * float(np.sum(error**2)), error @ key_query, error.T @ value


def balanced_factors(target: ArrayLike, logit_norm: float | None = None) -> tuple[Array, Array]:
    """P (outputs, d) and Q (d, d) with P Q^T = Y, P^T P proportional to Q^T Q, and |Q|_F = logit_norm or |P|_F.

    Y = U s V^T is split as P = U s^(1/2), Q = V s^(1/2). The rotation that is free between the two is set to I: with
    Q = V s^(1/2) V^T every token would attend to itself.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y.
    logit_norm : float, optional
        |Q|_F; by default that of P.

    Returns
    -------
    tuple of array
        P and Q.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import balanced_factors, imbalance
    >>> target = np.array([[2.0, 0.0], [1.0, 1.0]])
    >>> P, Q = balanced_factors(target)
    >>> bool(np.allclose(P @ Q.T, target)), imbalance(P, Q) < 1e-12
    (True, True)
    """
    from scipy import linalg

    left, sizes, right = linalg.svd(np.asarray(target, dtype=np.float64), full_matrices=False)
    dim, rank = right.shape[1], len(sizes)
    value, key_query = np.zeros((len(left), dim)), np.zeros((dim, dim))
    value[:, :rank], key_query[:, :rank] = left * np.sqrt(sizes), right.T * np.sqrt(sizes)
    scale = 1.0 if logit_norm is None else logit_norm / float(np.linalg.norm(key_query))
    return value / scale, key_query * scale


def imbalance(P: ArrayLike, Q: ArrayLike) -> float:
    """|P^T P / tau - tau Q^T Q|_F relative to |P|_F |Q|_F, tau = |P|_F/|Q|_F: zero iff balanced, the same for (cP, Q/c).

    Parameters
    ----------
    P, Q : array_like of shape (outputs, d) and (d, d)
        Whitened factors.

    Returns
    -------
    float
        0 if balanced.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import imbalance
    >>> imbalance(np.eye(2), 5 * np.eye(2)) < 1e-12, round(imbalance(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])), 4)
    (True, 1.4142)
    """
    value, key_query = factor_pair(P, Q)
    first, second = np.linalg.norm(value), np.linalg.norm(key_query)
    return float(np.linalg.norm(value.T @ value / first**2 - key_query.T @ key_query / second**2))


def gauge_floor(target: ArrayLike) -> float:
    """n times the least error of a short-logit layer on centred tokens, over all factors of Y: |Y|_*^2 + |Y|_F^2.

    As Q shrinks, n * finite_context_error(P, Q, n, centred=True) tends to |P|_F^2 |Q|_F^2 + |Y|_F^2, and the product of
    the norms is least, the nuclear norm of Y, exactly for balanced factors.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y.

    Returns
    -------
    float
        The floor, times n.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import gauge_floor
    >>> round(gauge_floor(np.eye(2)), 6)
    6.0
    """
    sizes = svdvals(np.asarray(target, dtype=np.float64))
    return float(sizes.sum() ** 2 + np.sum(sizes**2))


def factor_pair(P: ArrayLike, Q: ArrayLike) -> tuple[Array, Array]:
    value, key_query = np.asarray(P, dtype=np.float64), np.asarray(Q, dtype=np.float64)
    if value.ndim != 2 or key_query.shape != (value.shape[1],) * 2:
        raise ValueError(f"P {value.shape} and Q {key_query.shape} must have shapes (outputs, d) and (d, d)")
    if not (np.isfinite(value).all() and np.isfinite(key_query).all()):
        raise ValueError("P and Q must be finite")
    return value, key_query


def svdvals(matrix: Array) -> Array:
    from scipy import linalg  # takes a quarter of a second to import, which listing the claims does not need

    values: Array = linalg.svdvals(matrix)
    return values
