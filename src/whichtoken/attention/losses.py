"""Losses of a label margin m = y f, their slopes, and the logarithms of both, which stay right where the loss underflows.

    logistic log(1 + e^-m)      exponential e^-m      linear -m

The functions compile into any kernel. Slopes are derivatives in m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from numba import cfunc, njit
from numba.core.errors import NumbaError

from whichtoken.attention.kernels import EXACT

LogSlope = Callable[[float], float]
Loss = Literal["logistic", "exponential", "linear"] | LogSlope

FLAT = 37.0  # margin from which on log(1 + e^-m) is e^-m in double precision


@njit(cache=True, **EXACT)
def logistic_with_slope(margin: float) -> tuple[float, float]:
    """Loss and slope from one exponential."""
    small = math.exp(-abs(margin))
    return max(-margin, 0.0) + math.log1p(small), -(small if margin > 0 else 1.0) / (1.0 + small)


@njit(cache=True, **EXACT)
def logistic(margin: float) -> float:
    """log(1 + e^-m)."""
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


@njit(cache=True, **EXACT)
def logistic_slope(margin: float) -> float:
    """-1 / (1 + e^m)."""
    return float(logistic_with_slope(margin)[1])


@njit(cache=True, **EXACT)
def log_logistic(margin: float) -> float:
    """Logarithm of the loss."""
    return -margin if margin > FLAT else math.log(logistic(margin))


@njit(cache=True, **EXACT)
def log_logistic_slope(margin: float) -> float:
    """Logarithm of |slope|."""
    return -max(margin, 0.0) - math.log1p(math.exp(-abs(margin)))


@njit(cache=True, **EXACT)
def log_exponential_slope(margin: float) -> float:
    """Logarithm of |slope|, which is that of the loss."""
    return -margin


@njit(cache=True, **EXACT)
def log_linear_slope(margin: float) -> float:
    """Logarithm of |slope|, 0."""
    return 0.0 * margin


# losses whose slope never changes sign and never ends: what a descent in the log domain can follow
LOG_SLOPES = {"logistic": log_logistic_slope, "exponential": log_exponential_slope, "linear": log_linear_slope}


def compiled_log_slope(loss: Loss) -> Any:
    """Logarithm of |l'(m)| as a compiled function of one float, which kernels take as an argument.

    Parameters
    ----------
    loss
        l(m) = log(1 + exp(-m)), exp(-m) or -m by name; or, for any other decreasing loss, a function that returns
        log |l'(m)| for a float m. It may be plain Python or compiled by numba; numba must be able to compile it.
    """
    if isinstance(loss, str) and loss in LOG_SLOPES:
        return _compile(LOG_SLOPES[loss])
    if not callable(loss):
        raise ValueError(f"loss={loss!r} must be one of {', '.join(LOG_SLOPES)} or a function that gives log |l'(m)|")
    function = _compile(loss)
    if math.isnan(value := function(0.0)):
        raise ValueError(f"loss={loss!r} must return log |l'(m)| as a number, it returns {value} at m = 0")
    return function


@cache
def _compile(function: LogSlope) -> Any:
    # A C function has the same type whatever it computes, so that kernels are compiled once for all losses. The small function
    # around it is not cached: numba keeps what it compiles from one Python function in one place.
    try:
        scalar = function if hasattr(function, "py_func") else njit(function)
        return cfunc("float64(float64)")(lambda margin: scalar(margin))
    except (NumbaError, AttributeError, TypeError, ValueError) as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise ValueError(
            f"loss={function!r} must be a function of one float that numba can compile: {reason}"
        ) from None
