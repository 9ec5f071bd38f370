"""How fast the factors are trained. Symbols as in `attention_regression`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def gram_rate(
    singular_values: ArrayLike, step: float, damping: float = 0.0, dim: int | None = None, outputs: int | None = None
) -> float:
    """Factor per iteration of the loss near the solution, with Gram preconditioning: that of the slowest direction.

    The error E of the map moves to E - eta (E Pi_Q + Pi_P E), Pi the damped projections on the two factors. In the
    singular basis of Y entry (i, j) shrinks by 1 - eta (w_i + w_j), w_i = s_i / (s_i + delta s_1). Undamped and of full
    rank that is (1 - 2 eta)^2, whatever the singular values.

    Parameters
    ----------
    singular_values : array_like of shape (min(outputs, d),)
        Of Y, all positive, any order.
    step : float
        eta.
    damping : float, default=0.0
        delta, relative to the largest eigenvalue of the Gram matrix.
    dim, outputs : int, optional
        Width of the tokens or number of outputs, whichever is larger than the other: the map then has directions which
        only one of the factors can move, and they shrink by (1 - eta w_i)^2.

    Returns
    -------
    float
        Factor per iteration, below 1 where training converges.

    Examples
    --------
    >>> from whichtoken.theory.attention_regression import gram_rate
    >>> gram_rate([1.0, 0.01], step=0.25), gram_rate([1.0, 1.0], step=0.25)  # conditioning does not matter
    (0.25, 0.25)
    """
    sizes = np.asarray(singular_values, dtype=np.float64)
    if sizes.ndim != 1 or not sizes.size or not (sizes > 0.0).all():
        raise ValueError(f"singular_values={sizes.tolist()} must be a list of positive numbers, for a map of full rank")
    if min(dim or 0, outputs or 0) > len(sizes):
        raise ValueError(f"dim={dim} and outputs={outputs} must not both exceed the {len(sizes)} singular values")
    _check_step(step)
    weights = sizes / (sizes + damping * sizes.max())
    rows, columns = (np.append(weights, 0.0) if (size or 0) > len(sizes) else weights for size in (outputs, dim))
    return float(np.max(np.abs(1.0 - step * (rows[:, None] + columns[None, :]))) ** 2)


def covariance_rate(condition: float, step: float, square: bool = True) -> float:
    """Factor per iteration of the loss near a balanced solution, with the covariance as only preconditioner.

    The step is eta / (|P|_op^2 + |Q|_op^2) = eta / (2 s_1), so entry (i, j) of the error shrinks by 1 - eta (s_i + s_j) /
    (2 s_1). The slowest one gives (1 - eta / condition)^2: iterations in proportion to the condition number of Y. If Y is
    not square, only one of the factors moves some of its directions, and it takes twice as long.

    Parameters
    ----------
    condition : float
        Condition number of Y, at least 1.
    step : float
        eta.
    square : bool, default=True
        Whether Y is square.

    Returns
    -------
    float
        Factor per iteration.

    Examples
    --------
    >>> from whichtoken.theory.attention_regression import covariance_rate
    >>> covariance_rate(condition=1.0, step=0.5) < covariance_rate(condition=100.0, step=0.5)
    True
    """
    _check_step(step)
    if not condition >= 1.0:
        raise ValueError(f"condition={condition} must be at least 1")
    slowest = step / condition if square else step / (2.0 * condition)
    return max((1.0 - slowest) ** 2, (1.0 - step) ** 2)


def chain_rate(factors: int, step: float) -> float:
    """Factor per iteration of the loss of a product of k square factors, each preconditioned: (1 - k eta)^2.

    Parameters
    ----------
    factors : int
        k.
    step : float
        eta.

    Returns
    -------
    float
        Factor per iteration.

    Examples
    --------
    >>> from whichtoken.theory.attention_regression import chain_rate
    >>> chain_rate(factors=2, step=0.25)
    0.25
    """
    _check_step(step)
    if factors < 1:
        raise ValueError(f"factors={factors} must be at least 1")
    return (1.0 - factors * step) ** 2


def iterations_to(reduction: float, rate: float) -> float:
    """Iterations after which a loss that shrinks by `rate` each time is `reduction` times its first value.

    Parameters
    ----------
    reduction : float
        Between 0 and 1.
    rate : float
        Factor per iteration.

    Returns
    -------
    float
        Number of iterations; inf where the loss does not shrink.

    Examples
    --------
    >>> from whichtoken.theory.attention_regression import iterations_to
    >>> round(iterations_to(1e-6, rate=0.1), 6)
    6.0
    """
    if not 0.0 < reduction <= 1.0:
        raise ValueError(f"reduction={reduction} must lie in (0, 1]")
    if not 0.0 <= rate < 1.0:
        return math.inf
    return math.log(reduction) / math.log(rate) if rate > 0.0 else 1.0


def _check_step(step: float) -> None:
    if not 0.0 < step < math.inf:
        raise ValueError(f"step={step} must be a finite positive number")
