"""Adam as in torch.optim, and Lion, with second moments that may lie far below the smallest float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from whichtoken.flows.steps.settings import Settings, blend, blend_squares


@njit(cache=True, nogil=True)
def adam_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step k = 1, 2, ... of `Adam`, in place; arrays are flat."""
    beta1, beta2, eps = options[0], options[1], options[2]
    first, root = memory[: weights.size], memory[weights.size :]
    logs[0] = blend(first, logs[0], beta1, descent, log_scale, 1.0 - beta1)
    logs[1] = blend_squares(root, logs[1], beta2, descent, log_scale, 1.0 - beta2)
    lr *= math.sqrt(1.0 - beta2**k) / (1.0 - beta1**k)
    eps *= math.sqrt(1.0 - beta2**k)
    weights += lr * quotient(first, logs[0], root, logs[1], eps)


@njit(cache=True, nogil=True)
def quotient(above: Any, log_above: float, below: Any, log_below: float, eps: float) -> Any:
    """above / (below + eps), both arrays in units of their own; 0 where the denominator is."""
    found = np.zeros(above.size)
    if log_above == -math.inf:
        return found
    # the larger of the two terms of the denominator is divided out: neither overflows
    unit = max(log_below, math.log(eps)) if eps > 0.0 else log_below
    factor, shrink = math.exp(log_above - unit), math.exp(log_below - unit)
    floor = eps * math.exp(-unit) if eps > 0.0 else 0.0
    for j in range(above.size):
        denominator = shrink * below[j] + floor
        if denominator > 0.0:
            found[j] = factor * above[j] / denominator
    return found


@njit(cache=True, nogil=True)
def lion_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `Lion`, in place."""
    beta1, beta2 = options[0], options[1]
    ahead = memory.copy()
    blend(ahead, logs[0], beta1, descent, log_scale, 1.0 - beta1)
    weights += lr * np.sign(ahead)
    logs[0] = blend(memory, logs[0], beta2, descent, log_scale, 1.0 - beta2)


@dataclass(frozen=True)
class Adam(Settings):
    """W <- W - lr m / (sqrt(v) + eps); m and v average G and its squares with the shares `betas`, corrected for their start.

    eps = 0 is allowed: an entry whose gradient has been zero so far does not move.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    step = staticmethod(adam_step)

    def memory(self, rows: int, columns: int) -> int:
        return 2 * rows * columns


@dataclass(frozen=True)
class Lion(Settings):
    """W <- W - lr sign(beta_1 m + (1 - beta_1) G), then m <- beta_2 m + (1 - beta_2) G.

    Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv 2302.06675.
    """

    betas: tuple[float, float] = (0.9, 0.99)

    step = staticmethod(lion_step)

    def memory(self, rows: int, columns: int) -> int:
        return rows * columns
