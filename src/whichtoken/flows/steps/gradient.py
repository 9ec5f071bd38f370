"""Gradient descent with heavy-ball momentum, as torch.optim.SGD does it, and steepest descent in three norms of the entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from whichtoken.flows.mirror_steps import largest_magnitude
from whichtoken.flows.steps.settings import Settings, blend, momentum


@njit(cache=True, nogil=True)
def gradient_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step k = 1, 2, ... of `GradientDescent`, in place; arrays are flat."""
    momentum = options[0]
    if momentum == 0.0:
        weights += lr * math.exp(log_scale) * descent
        return
    logs[0] = blend(memory, logs[0], momentum, descent, log_scale, 1.0)
    weights += lr * math.exp(logs[0]) * memory


@njit(cache=True, nogil=True)
def normalized_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `NormalizedDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], 0.0, descent, log_scale)
    peak = largest_magnitude(average)
    if peak > 0.0:
        scaled = average / peak
        weights += lr / math.sqrt(np.dot(scaled, scaled)) * scaled


@njit(cache=True, nogil=True)
def sign_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `SignDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], 0.0, descent, log_scale)
    weights += lr * np.sign(average)


@njit(cache=True, nogil=True)
def coordinate_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `CoordinateDescent`, in place."""
    average, _, logs[0] = momentum(memory, logs[0], options[0], 0.0, descent, log_scale)
    steepest = np.argmax(np.abs(average))
    weights[steepest] += lr * np.sign(average[steepest])


@dataclass(frozen=True)
class GradientDescent(Settings):
    """W <- W - lr b with b <- momentum b + G."""

    momentum: float = 0.0

    step = staticmethod(gradient_step)


@dataclass(frozen=True)
class _Steepest(Settings):
    """With M an average of gradients, W <- W - lr argmax over the unit ball of <M, .>."""

    momentum: float = 0.0


@dataclass(frozen=True)
class NormalizedDescent(_Steepest):
    """Along M / |M|_2."""

    step = staticmethod(normalized_step)


@dataclass(frozen=True)
class SignDescent(_Steepest):
    """Along sign(M): signSGD, with momentum signum."""

    step = staticmethod(sign_step)


@dataclass(frozen=True)
class CoordinateDescent(_Steepest):
    """Along the largest entry of M alone, the steepest direction of l_1."""

    step = staticmethod(coordinate_step)
