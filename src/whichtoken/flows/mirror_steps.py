"""Compiled l_p mirror steps on a block of parameters whose norm, gradient and elapsed time may exceed every float.

The dual variable is carried as U = exp(log_unit) * dual and the gradient as exp(log_scale) * descent, so that neither the
growth of the parameters nor the decay of the gradient ever leaves the range of a float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.checks import check_choice
from whichtoken.display.shown import Shown
from whichtoken.norms import dual_exponent, power_norm
from whichtoken.theory.mirror_descent import inverse_mirror_map

Rule = Literal["plain", "normalized", "geometric", "flow"]
PLAIN, NORMALIZED, GEOMETRIC, FLOW = range(4)
RULES: dict[str, int] = {"plain": PLAIN, "normalized": NORMALIZED, "geometric": GEOMETRIC, "flow": FLOW}

LOG_HUGE = 650.0  # scores are capped at exp(650): their differences then still fit into a float64
_RESCALE_ABOVE = 1e100


@dataclass(frozen=True, eq=False)
class DescentState(Shown):
    """The dual variable U after `step` steps, as exp(log_dual_norm) times an array of unit l_q norm.

    Mirror descent of entries has its own p; all other optimizers are described with p = 2, where U is the parameters.
    """

    step: int
    p: float
    dual: NDArray[np.float64]  # the shape of the parameters, unit l_q norm (zero if U is)
    log_dual_norm: float  # log |U|_q
    # logarithm of the time that gradient flow, dU/dt = -G, takes to get here; -inf at the start, nan for other optimizers
    log_time: float
    factors: tuple[NDArray[np.float64], ...] = ()  # whose product is the parameters, where the start was factored

    @property
    def direction(self) -> NDArray[np.float64]:
        """The parameters divided by their l_p norm."""
        return inverse_mirror_map(self.dual, self.p)

    @property
    def log_norm(self) -> float:
        """Logarithm of the l_p norm of the parameters, finite even where the norm is not."""
        return self.log_dual_norm / (self.p - 1.0)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The parameters themselves, where they fit into floats."""
        return math.exp(self.log_norm) * self.direction


def descent_state(
    step: int, p: float, dual: NDArray[np.float64], log_unit: float, log_time: float, shape: tuple[int, ...]
) -> DescentState:
    """State of a block of parameters with dual variable exp(log_unit) * dual."""
    norm = power_norm(dual, dual_exponent(p))
    if norm == 0.0:
        return DescentState(step, p, dual.reshape(shape), -math.inf, log_time)
    return DescentState(step, p, (dual / norm).reshape(shape), math.log(norm) + log_unit, log_time)


def rule_number(rule: str) -> int:
    """Number of a rule."""
    check_choice("rule", rule, RULES)
    return RULES[rule]


def check_rate(field: str, rate: float) -> float:
    """A step size that is a finite positive number."""
    if not 0.0 < rate < math.inf:
        raise ValueError(f"{field}={rate} must be a finite positive number")
    return rate


def check_record(record: Iterable[int], steps: int) -> NDArray[np.int64]:
    """Step numbers to keep, ascending and without repetition."""
    recorded = np.unique(np.fromiter(record, dtype=np.int64))
    if steps < 0:
        raise ValueError(f"steps={steps} must not be negative")
    if recorded.size and not 0 <= recorded[0] <= recorded[-1] <= steps:
        raise ValueError(f"record={recorded.tolist()} must lie between 0 and steps={steps}")
    return recorded


@njit(cache=True, nogil=True)
def primal(dual: Any, log_unit: float, q: float, weights: Any) -> float:
    """Write the parameters divided by their largest magnitude, and return the logarithm of that."""
    peak = largest_magnitude(dual)
    if peak == 0.0:
        weights[:] = 0.0
        return -math.inf
    for j in range(dual.size):
        weights[j] = math.copysign(_power(abs(dual[j]) / peak, q - 1.0), dual[j])
    return (q - 1.0) * (math.log(peak) + log_unit)


@njit(cache=True, nogil=True)
def log_length(rule: int, lr: float, dual: Any, log_unit: float, descent: Any, log_scale: float, q: float) -> float:
    """Logarithm of the factor of `descent` in a step of U; -inf where the gradient vanishes.

    A rule's step takes the time exp(log_length - log_scale) of gradient flow.
    """
    norm = _norm(descent, q)
    if norm == 0.0:
        return -math.inf
    if rule == PLAIN:
        return math.log(lr) + log_scale
    length = math.log(lr / norm)
    if rule == NORMALIZED:
        return length
    dual_norm = _norm(dual, q)
    log_dual_norm = max(math.log(dual_norm) + log_unit, 0.0) if dual_norm > 0.0 else 0.0
    if rule == GEOMETRIC:
        return length + log_dual_norm
    # |dW|_p <= (q - 1) |U|_q^(q - 2) |dU|_q for p <= 2: scores change by about lr, whatever the size of W
    return length + (2.0 - q) * log_dual_norm - math.log(q - 1.0)


@njit(cache=True, nogil=True)
def advance(dual: Any, log_unit: float, descent: Any, length: float) -> float:
    """Add exp(length) * descent to U, in place; return the new log_unit."""
    peak = largest_magnitude(dual)
    if length > -math.inf:
        dual += math.exp(length - log_unit) * descent
    if peak > _RESCALE_ABOVE:
        dual /= peak
        log_unit += math.log(peak)
    return log_unit


@njit(cache=True, nogil=True)
def later(log_time: float, log_step: float) -> float:
    """Logarithm of the sum of two times."""
    if log_step == -math.inf:
        return log_time
    first, last = min(log_time, log_step), max(log_time, log_step)
    return last + math.log1p(math.exp(first - last))


@njit(cache=True, nogil=True)
def largest_magnitude(values: Any) -> float:
    largest = 0.0
    for j in range(values.size):
        largest = max(largest, abs(values[j]))
    return largest


@njit(cache=True, nogil=True)
def _norm(values: Any, q: float) -> float:
    peak = largest_magnitude(values)
    if peak == 0.0:
        return 0.0
    total = 0.0
    for j in range(values.size):
        ratio = abs(values[j]) / peak
        total += ratio * _power(ratio, q - 1.0)
    return float(peak * total ** (1.0 / q))


@njit(cache=True, nogil=True)
def _power(base: float, exponent: float) -> float:
    # pow would take half of the time of a step; p = 2 and p = 3 do without
    if exponent == 1.0:
        return base
    return math.sqrt(base) if exponent == 0.5 else base**exponent
