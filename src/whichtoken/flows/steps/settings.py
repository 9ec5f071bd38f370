"""What every optimizer of `attention_descent` declares: its checked options, its compiled step and the numbers it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import njit, types

from whichtoken.checks import check_count, check_range
from whichtoken.flows.mirror_steps import largest_magnitude

_FLOATS, _FLOAT, _INT = types.float64[::1], types.float64, types.int64
# (weights, descent, log_scale, memory, logs, options, lr, k, rows, columns): move a matrix, flat, along exp(log_scale) * descent
# in its k-th step, k = 1, 2, ...; `memory` and `logs` are the step's own, zeros and -inf at the start
STEP = types.void(_FLOATS, _FLOATS, _FLOAT, _FLOATS, _FLOATS, _FLOATS, _FLOAT, _INT, _INT, _INT)
# (parameters, logs, options, rows, columns, weights) -> log_size: write the weights, divided by exp(log_size)
READ = types.float64(_FLOATS, _FLOATS, _FLOATS, _INT, _INT, _FLOATS)
_RESCALE_BELOW = 1e-100


@njit(cache=True, nogil=True)
def read_parameters(parameters: Any, logs: Any, options: Any, rows: int, columns: int, weights: Any) -> float:
    """The weights are the parameters."""
    weights[:] = parameters
    return 0.0


def check_share(name: str, value: float) -> None:
    """Refuse a decay of an average outside [0, 1)."""
    check_range(name, value, 0.0, 1.0, include_low=True)


def check_not_negative(name: str, value: float) -> None:
    """Refuse what is not a finite number of at least 0."""
    check_range(name, value, 0.0, float("inf"), include_low=True)


def check_betas(name: str, betas: tuple[float, float]) -> None:
    """Refuse anything but two shares."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"{name}={betas} must be two numbers in [0, 1)")
    for place, beta in enumerate(betas):
        check_share(f"{name}[{place}]", beta)


# of the options that have one meaning in every optimizer
CHECKS: dict[str, Callable[[str, Any], object]] = {
    "betas": check_betas,
    **dict.fromkeys(("momentum", "shampoo_beta"), check_share),
    "eps": check_not_negative,
    "iterations": lambda name, value: check_count(name, value, 1),
}


@dataclass(frozen=True)
class Settings:
    """Options of one optimizer. A subclass adds fields, which become keyword arguments of `attention_descent`."""

    # compiled: the step, of type STEP, and how the weights are read off the parameters, of type READ
    step: ClassVar[Any]
    read: ClassVar[Any] = staticmethod(read_parameters)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in CHECKS:
                CHECKS[name](name, value)

    def numbers(self) -> tuple[float, ...]:
        """The options in the order in which the compiled step reads them."""
        return tuple(float(number) for value in vars(self).values() for number in np.atleast_1d(value))

    def memory(self, rows: int, columns: int) -> int:
        """How many floats the step remembers of a matrix of this shape: those of its momentum, where it has one."""
        return rows * columns if getattr(self, "momentum", 0.0) else 0


@njit(cache=True, nogil=True)
def blend(average: Any, log_unit: float, keep: float, gradient: Any, log_scale: float, share: float) -> float:
    """average <- keep * average + share * gradient, flat arrays in units of their own; return the new unit."""
    unit = max(log_unit, log_scale)
    if unit == -math.inf:
        return log_unit
    old, new = keep * math.exp(log_unit - unit), share * math.exp(log_scale - unit)
    for j in range(average.size):
        average[j] = old * average[j] + new * gradient[j]
    return _rescale(average, unit)


@njit(cache=True, nogil=True)
def blend_squares(root: Any, log_unit: float, keep: float, gradient: Any, log_scale: float, share: float) -> float:
    """root^2 <- keep * root^2 + share * gradient^2, in the manner of `blend`; the squares themselves are never formed."""
    unit = max(log_unit, log_scale)
    if unit == -math.inf:
        return log_unit
    old, new = math.sqrt(keep) * math.exp(log_unit - unit), math.sqrt(share) * math.exp(log_scale - unit)
    for j in range(root.size):
        root[j] = math.hypot(old * root[j], new * gradient[j])
    return _rescale(root, unit)


@njit(cache=True, nogil=True)
def _rescale(values: Any, unit: float) -> float:
    peak = largest_magnitude(values)
    if 0.0 < peak < _RESCALE_BELOW:
        values /= peak
        return unit + math.log(peak)
    return unit if peak > 0.0 else -math.inf


@njit(cache=True, nogil=True)
def momentum(
    average: Any, log_unit: float, decay: float, nesterov: float, descent: Any, log_scale: float
) -> tuple[Any, float, float]:
    """The exponential average of descents, as Muon and signum take it; return what to step along, its unit, the average's.

    `nesterov` not zero looks one step ahead: descent plus decay times the average's change.
    """
    if decay == 0.0:
        return descent, log_scale, log_unit
    log_unit = blend(average, log_unit, decay, descent, log_scale, 1.0 - decay)
    if nesterov == 0.0:
        return average, log_unit, log_unit
    ahead = average.copy()
    return ahead, blend(ahead, log_unit, decay, descent, log_scale, 1.0 - decay), log_unit
