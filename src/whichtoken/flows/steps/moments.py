"""Averages of gradients that shrink below every float: an array times exp(log_unit), the unit carried apart."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from whichtoken.flows.mirror_steps import largest_magnitude

_RESCALE_BELOW = 1e-100


@njit(cache=True, nogil=True)
def blend(average: Any, log_unit: float, keep: float, gradient: Any, log_scale: float, share: float) -> float:
    """average <- keep * average + share * gradient, flat arrays in units of their own; return the new unit."""
    unit = max(log_unit, log_scale)
    if unit == -math.inf:
        return log_unit
    old, new = keep * math.exp(log_unit - unit), share * math.exp(log_scale - unit)
    for j in range(average.size):
        average[j] = old * average[j] + new * gradient[j]
    return _rescaled(average, unit)


@njit(cache=True, nogil=True)
def blend_squares(root: Any, log_unit: float, keep: float, gradient: Any, log_scale: float, share: float) -> float:
    """root^2 <- keep * root^2 + share * gradient^2, in the manner of `blend`; the squares themselves are never formed."""
    unit = max(log_unit, log_scale)
    if unit == -math.inf:
        return log_unit
    old, new = math.sqrt(keep) * math.exp(log_unit - unit), math.sqrt(share) * math.exp(log_scale - unit)
    for j in range(root.size):
        root[j] = math.hypot(old * root[j], new * gradient[j])
    return _rescaled(root, unit)


@njit(cache=True, nogil=True)
def _rescaled(values: Any, unit: float) -> float:
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
