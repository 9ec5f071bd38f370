"""Mirror descent in the potential sum_j s_j(W)^p / p of the singular values; the entrywise one is `mirror_steps`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from whichtoken.checks import check_range
from whichtoken.flows.mirror_steps import Rule, advance, log_length, primal, rule_number
from whichtoken.flows.steps.muon import compose_svd, thin_svd
from whichtoken.flows.steps.settings import Settings
from whichtoken.norms import dual_exponent


@njit(cache=True, nogil=True)
def schatten_step(
    dual: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `SchattenMirror` on the dual variable exp(unit) * dual, in place."""
    if log_scale == -math.inf:
        return
    unit = _unit(logs)
    q, rule = options[0], int(options[1])
    slopes = thin_svd(descent.reshape((rows, columns)))[1]
    sizes = thin_svd(dual.reshape((rows, columns)))[1]
    logs[0] = advance(dual, unit, descent, log_length(rule, lr, sizes, unit, slopes, log_scale, q))


@njit(cache=True, nogil=True)
def schatten_weights(dual: Any, logs: Any, options: Any, rows: int, columns: int, weights: Any) -> float:
    """Write W over its spectral norm, flat, and return the logarithm of that norm."""
    left, values, right = thin_svd(dual.reshape((rows, columns)))
    powers = np.empty_like(values)
    log_size = primal(values, _unit(logs), options[0], powers)
    weights[:] = compose_svd(left, powers, right).ravel()
    return float(log_size)


@njit(cache=True, nogil=True)
def _unit(logs: Any) -> float:
    return float(logs[0]) if logs[0] > -math.inf else 0.0


@dataclass(frozen=True)
class SchattenMirror(Settings):
    """U <- U - step * G, W = U with its singular values raised to 1 / (p - 1); |.|_q is the Schatten norm."""

    p: float = 2.0
    rule: Rule = "normalized"

    step = staticmethod(schatten_step)

    read = staticmethod(schatten_weights)

    def __post_init__(self) -> None:
        check_range("p", self.p, 1.0, math.inf)
        rule_number(self.rule)

    def numbers(self) -> tuple[float, ...]:
        return dual_exponent(self.p), rule_number(self.rule)
