"""Muon: steps along the polar factor of an average of gradients, exact or by Newton and Schulz as in torch.optim.Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from whichtoken.checks import check_choice, check_count
from whichtoken.flows.mirror_steps import largest_magnitude
from whichtoken.flows.steps.moments import momentum
from whichtoken.flows.steps.polar import newton_schulz, polar_factor
from whichtoken.flows.steps.settings import Settings, check_not_negative, check_share


@dataclass(frozen=True)
class Muon(Settings):
    """W <- (1 - lr weight_decay) W - lr sqrt(max(1, rows / columns)) U V^T, with U S V^T the average M of gradients.

    `newton-schulz` divides M by max(|M|, eps) and iterates `iterations` times, in float64 where torch takes bfloat16; gradients
    below eps then shorten the steps. Jordan et al., Muon: an optimizer for hidden layers, 2024.
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.0
    method: Literal["polar", "newton-schulz"] = "polar"
    iterations: int = 5
    eps: float = 1e-7

    @property
    def step(self) -> Any:
        return muon_step

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_not_negative("weight_decay", self.weight_decay)
        check_choice("method", self.method, ("polar", "newton-schulz"))
        check_count("iterations", self.iterations, 1)
        check_not_negative("eps", self.eps)

    def numbers(self) -> tuple[float, ...]:
        iterations = self.iterations if self.method == "newton-schulz" else 0
        return self.momentum, float(self.nesterov), self.weight_decay, iterations, self.eps

    def memory(self, rows: int, columns: int) -> int:
        return rows * columns if self.momentum else 0


@njit(cache=True, nogil=True)
def muon_step(
    weights: Any,
    descent: Any,
    log_scale: float,
    memory: Any,
    logs: Any,
    options: Any,
    lr: float,
    k: int,
    rows: int,
    columns: int,
) -> None:
    """Step of `Muon`, in place; arrays are flat."""
    average, log_unit, logs[0] = momentum(memory, logs[0], options[0], options[1], descent, log_scale)
    weights *= 1.0 - lr * options[2]
    peak = largest_magnitude(average)
    if peak == 0.0:
        return
    matrix = (average / peak).reshape((rows, columns))
    iterations, eps = int(options[3]), options[4]
    if iterations == 0:
        update = polar_factor(matrix)
    else:
        norm = math.sqrt(np.sum(matrix * matrix))
        log_norm = math.log(norm) + math.log(peak) + log_unit
        if eps > 0.0 and log_norm < math.log(eps):
            norm *= math.exp(min(math.log(eps) - log_norm, 700.0))
        update = newton_schulz(matrix / norm, iterations)
    weights += lr * math.sqrt(max(1.0, rows / columns)) * update.ravel()
