"""Steps of constant size along the steepest direction of a norm: l_2 (normalised descent), l_inf (sign), l_1 (coordinate)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from whichtoken.flows.mirror_steps import largest_magnitude
from whichtoken.flows.steps.moments import momentum
from whichtoken.flows.steps.settings import Settings, check_not_negative, check_share


@dataclass(frozen=True)
class _Steepest(Settings):
    """With M an average of gradients, W <- (1 - lr weight_decay) W - lr argmax over the unit ball of <M, .>."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_not_negative("weight_decay", self.weight_decay)

    def numbers(self) -> tuple[float, ...]:
        return self.momentum, float(self.nesterov), self.weight_decay

    def memory(self, rows: int, columns: int) -> int:
        return rows * columns if self.momentum else 0


@dataclass(frozen=True)
class NormalizedDescent(_Steepest):
    """Along M / |M|_2."""

    @property
    def step(self) -> Any:
        return normalized_step


@dataclass(frozen=True)
class SignDescent(_Steepest):
    """Along sign(M): signSGD, with momentum signum."""

    @property
    def step(self) -> Any:
        return sign_step


@dataclass(frozen=True)
class CoordinateDescent(_Steepest):
    """Along the largest entry of M alone, the steepest direction of l_1."""

    @property
    def step(self) -> Any:
        return coordinate_step


@njit(cache=True, nogil=True)
def normalized_step(
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
    """Step of `NormalizedDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], options[1], descent, log_scale)
    weights *= 1.0 - lr * options[2]
    peak = largest_magnitude(average)
    if peak > 0.0:
        scaled = average / peak
        weights += lr / math.sqrt(np.dot(scaled, scaled)) * scaled


@njit(cache=True, nogil=True)
def sign_step(
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
    """Step of `SignDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], options[1], descent, log_scale)
    weights *= 1.0 - lr * options[2]
    weights += lr * np.sign(average)


@njit(cache=True, nogil=True)
def coordinate_step(
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
    """Step of `CoordinateDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], options[1], descent, log_scale)
    weights *= 1.0 - lr * options[2]
    steepest = np.argmax(np.abs(average))
    weights[steepest] += lr * np.sign(average[steepest])
