"""Losses of a label margin, known to the log-domain descents by the logarithm of their slope alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from numba import cfunc
from numba.core.errors import NumbaError

LogSlope = Callable[[float], float]
Loss = Literal["logistic", "exponential", "linear"] | LogSlope


def _logistic(margin: float) -> float:
    return -max(margin, 0.0) - math.log1p(math.exp(-abs(margin)))


def _exponential(margin: float) -> float:
    return -margin


def _linear(margin: float) -> float:
    return 0.0 * margin


LOG_SLOPES: dict[str, LogSlope] = {"logistic": _logistic, "exponential": _exponential, "linear": _linear}


def compiled_log_slope(loss: Loss) -> Any:
    """Logarithm of |l'(m)| as a compiled function of one float, which kernels take as an argument.

    Parameters
    ----------
    loss
        l(m) = log(1 + exp(-m)), exp(-m) or -m by name; or, for any other decreasing loss, a function that returns
        log |l'(m)| for a float m. It may be plain Python or compiled by numba; numba must be able to compile it.
    """
    if isinstance(loss, str):
        if loss not in LOG_SLOPES:
            raise ValueError(
                f"loss={loss!r} must be one of {', '.join(LOG_SLOPES)} or a function that gives log |l'(m)|"
            )
        return _compiled(LOG_SLOPES[loss], True)
    if not callable(loss):
        raise ValueError(f"loss={loss!r} must be one of {', '.join(LOG_SLOPES)} or a function that gives log |l'(m)|")
    function = _compiled(getattr(loss, "py_func", loss), False)
    if math.isnan(value := function(0.0)):
        raise ValueError(f"loss={loss!r} must return log |l'(m)| as a number, it returns {value} at m = 0")
    return function


@cache
def _compiled(function: LogSlope, keep: bool) -> Any:
    # a C function has the same type whatever it computes, so that kernels are compiled once for all losses
    try:
        return cfunc("float64(float64)", cache=keep)(function)
    except (NumbaError, AttributeError, TypeError, ValueError) as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise ValueError(
            f"loss={function!r} must be a function of one float that numba can compile: {reason}"
        ) from None
