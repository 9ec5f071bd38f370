"""Sample complexity of a downstream task that shares the relevant group.

The theorem leaves its constants open: these orders compare rates and sizes with each other, they are not probabilities.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.theory.group_sparse.problem import positive


def transfer_error_order(
    *, samples: ArrayLike, group_dim: int, groups: int, margin: float, confidence: float = 0.95
) -> NDArray[np.float64]:
    """Running average error of online SGD from a pre-trained transformer, up to a constant.

    (d + D) log^2(n)/(margin^2 n) + log(1/(1 - confidence))/n.

    Parameters
    ----------
    samples : array_like
        Numbers n of samples.
    group_dim, groups : int
        d and D.
    margin : float
        Distance of the samples from the decision boundary.
    confidence : float, default=0.95
        Probability with which the bound holds.

    Returns
    -------
    array
        The order of the error, of the shape of `samples`.

    References
    ----------
    Theorem 4.2 of Zhang, Meng, Cao, arXiv 2504.08638.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import transfer_error_order
    >>> few, many = transfer_error_order(samples=[1000, 100_000], group_dim=4, groups=10, margin=0.5)
    >>> bool(many < few)
    True
    """
    n = _sample_sizes(samples)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie strictly between 0 and 1")
    capacity = (group_dim + groups) / positive("margin", margin) ** 2
    order: NDArray[np.float64] = (capacity * np.log(n) ** 2 - np.log1p(-confidence)) / n
    return order


def logistic_error_order(*, samples: ArrayLike, group_dim: int, groups: int) -> NDArray[np.float64]:
    """Error of logistic regression on all variables, up to a constant: d D/n.

    Parameters
    ----------
    samples : array_like
        Numbers n of samples.
    group_dim, groups : int
        d and D.

    Returns
    -------
    array
        The order of the error, of the shape of `samples`.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import logistic_error_order
    >>> logistic_error_order(samples=[100, 1000], group_dim=2, groups=10).tolist()
    [0.2, 0.02]
    """
    return group_dim * groups / _sample_sizes(samples)


def _sample_sizes(samples: ArrayLike) -> NDArray[np.float64]:
    n = np.asarray(samples, dtype=float)
    if not np.all(n >= 2):
        raise ValueError(f"samples={n.min()} must be at least 2")
    return n
