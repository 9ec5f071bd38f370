"""Losses of a label margin m = y f, their slopes, and the logarithms of both, which stay right where the loss underflows.

    logistic log(1 + e^-m)      exponential e^-m      linear -m      hinge (1 - m)_+      square (1 - m)^2 / 2

The scalar functions compile into any kernel; `LOSSES[name]` has the same for arrays. Slopes are derivatives in m: never positive,
but for the square loss beyond m = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numba import cfunc, njit, vectorize
from numba.core.errors import NumbaError
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.sequence import EXACT

Floats = NDArray[np.float64]
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
def exponential(margin: float) -> float:
    """e^-m."""
    return math.exp(-margin)


@njit(cache=True, **EXACT)
def exponential_slope(margin: float) -> float:
    """-e^-m."""
    return -math.exp(-margin)


@njit(cache=True, **EXACT)
def log_exponential(margin: float) -> float:
    """Logarithm of the loss and of |slope|."""
    return -margin


@njit(cache=True, **EXACT)
def linear(margin: float) -> float:
    """-m."""
    return -margin


@njit(cache=True, **EXACT)
def linear_slope(margin: float) -> float:
    """-1."""
    return 0.0 * margin - 1.0


@njit(cache=True, **EXACT)
def log_linear_slope(margin: float) -> float:
    """Logarithm of |slope|, 0."""
    return 0.0 * margin


@njit(cache=True, **EXACT)
def hinge(margin: float) -> float:
    """(1 - m)_+."""
    return max(1.0 - margin, 0.0)


@njit(cache=True, **EXACT)
def hinge_slope(margin: float) -> float:
    """-1 where the margin is below 1, otherwise 0."""
    return -1.0 if margin < 1.0 else 0.0


@njit(cache=True, **EXACT)
def square(margin: float) -> float:
    """(1 - m)^2 / 2, which for labels -1 and +1 is (f - y)^2 / 2."""
    return (1.0 - margin) ** 2 / 2.0


@njit(cache=True, **EXACT)
def square_slope(margin: float) -> float:
    """m - 1."""
    return margin - 1.0


@dataclass(frozen=True)
class MarginLoss:
    """A loss by its compiled functions of one margin, and the same for arrays."""

    scalar: Any  # l(m)
    scalar_slope: Any  # l'(m)
    scalar_log: Any = None  # log l(m), for a loss that falls below every float
    scalar_log_slope: Any = None  # log |l'(m)|, likewise

    def value(self, margins: ArrayLike) -> Floats:
        """l(m) of every margin."""
        return np.asarray(_over_arrays(self.scalar)(margins))

    def slope(self, margins: ArrayLike) -> Floats:
        """l'(m) of every margin."""
        return np.asarray(_over_arrays(self.scalar_slope)(margins))

    def log_value(self, margins: ArrayLike) -> Floats:
        """log |l(m)| of every margin, -inf where the loss is 0."""
        return _log_size(self.value(margins)) if self.scalar_log is None else _over_arrays(self.scalar_log)(margins)

    def log_slope(self, margins: ArrayLike) -> Floats:
        """log |l'(m)| of every margin, -inf where the slope is 0."""
        if self.scalar_log_slope is None:
            return _log_size(self.slope(margins))
        return np.asarray(_over_arrays(self.scalar_log_slope)(margins))


LOSSES = {
    "logistic": MarginLoss(logistic, logistic_slope, log_logistic, log_logistic_slope),
    "exponential": MarginLoss(exponential, exponential_slope, log_exponential, log_exponential),
    "linear": MarginLoss(linear, linear_slope, None, log_linear_slope),
    "hinge": MarginLoss(hinge, hinge_slope),
    "square": MarginLoss(square, square_slope),
}
# losses whose slope never changes sign and never ends: what a descent in the log domain can follow
LOG_SLOPES = {name: loss.scalar_log_slope for name, loss in LOSSES.items() if loss.scalar_log_slope is not None}


# The forms for arrays and for C are small functions around the scalar ones, and are not cached: numba keeps what it compiles
# from one Python function in one place, and would hand out a form that Python cannot call where the scalar one is asked for.
@cache
def _over_arrays(scalar: Any) -> Any:
    return vectorize(lambda margin: scalar(margin))  # type: ignore[no-untyped-call]


def _log_size(numbers: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.abs(numbers)))


def compiled_log_slope(loss: Loss) -> Any:
    """Logarithm of |l'(m)| as a compiled function of one float, which kernels take as an argument.

    Parameters
    ----------
    loss
        l(m) = log(1 + exp(-m)), exp(-m) or -m by name; or, for any other decreasing loss, a function that returns
        log |l'(m)| for a float m. It may be plain Python or compiled by numba; numba must be able to compile it.
    """
    if isinstance(loss, str) and loss in LOG_SLOPES:
        return _compiled(LOG_SLOPES[loss])
    if not callable(loss):
        raise ValueError(f"loss={loss!r} must be one of {', '.join(LOG_SLOPES)} or a function that gives log |l'(m)|")
    function = _compiled(loss)
    if math.isnan(value := function(0.0)):
        raise ValueError(f"loss={loss!r} must return log |l'(m)| as a number, it returns {value} at m = 0")
    return function


@cache
def _compiled(function: LogSlope) -> Any:
    # a C function has the same type whatever it computes, so that kernels are compiled once for all losses
    try:
        scalar = function if hasattr(function, "py_func") else njit(function)
        return cfunc("float64(float64)")(lambda margin: scalar(margin))
    except (NumbaError, AttributeError, TypeError, ValueError) as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise ValueError(
            f"loss={function!r} must be a function of one float that numba can compile: {reason}"
        ) from None
