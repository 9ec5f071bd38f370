"""AdamW on a row whose gradient is zero for k steps, in one go.

A row without gradient still moves: E <- d E - c_i b1^i m / (b2^(i/2) r_i sqrt(v) + eps), with m and v as the last gradient
left them, d = 1 - lr weight_decay, c_i = lr / (1 - b1^t) and r_i = 1 / sqrt(1 - b2^t) at step t of the run. The k steps
together are d^k E - m sum_i w_i / (s_i sqrt(v) + eps): an integral of one smooth function of s against weights w_i that are
common to all coordinates. Since the s_i lie within a few per cent of each other, the two-node Gauss rule of that measure
gives the sum to float32 rounding. (`eps` cannot be neglected: gradients here are of order 1e-7.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Before this step the bias correction moves r_i too fast for two nodes: 4e-8 relative at 600, but 1e-6 at 200 and 6e-3 at 5.
QUADRATURE_FROM = 600
# Longer momentum or a faster fading variance spreads the s_i too far: 2e-5 at betas (0.9, 0.99), 6e-5 at (0.99, 0.999).
LONGEST_MOMENTUM, FASTEST_VARIANCE = 0.9, 0.999
DECAY, WEIGHT_1, NODE_1, WEIGHT_2, NODE_2, MOMENTUM, VARIANCE = range(7)  # columns of a table


class Rule(NamedTuple):
    """The constants of AdamW during one epoch, as torch.optim.AdamW defines them."""

    decay: float  # 1 - lr * weight_decay
    beta1: float
    beta2: float
    eps: float
    sizes: Floats  # (steps,) lr / (1 - beta1^t)
    spreads: Floats  # (steps,) 1 / sqrt(1 - beta2^t)
    quadrature_from: int  # step of the epoch from which missed steps are summed by quadrature


def adamw_rule(
    done: int, steps: int, lr: float, weight_decay: float, betas: tuple[float, float], eps: float, dtype: type
) -> Rule:
    """Constants for the next `steps` steps after `done` steps of the run.

    Every missed step is replayed where two nodes do not reach the precision of `dtype`: in float64, and for unusual betas.
    """
    t = np.arange(done + 1, done + steps + 1, dtype=np.float64)
    precise = dtype == np.float32 and betas[0] <= LONGEST_MOMENTUM and betas[1] >= FASTEST_VARIANCE
    first = max(QUADRATURE_FROM - done, 0) if precise else steps
    return Rule(
        decay=1 - lr * weight_decay,
        beta1=betas[0],
        beta2=betas[1],
        eps=eps,
        sizes=lr / (1 - betas[0] ** t),
        spreads=1 / np.sqrt(1 - betas[1] ** t),
        quadrature_from=first,
    )


@njit(cache=True, nogil=True)
def fill_table(table: Floats, rule: Rule, step: int, missed: int, own: bool) -> None:
    """Row k of `table`: the k steps after `step`, which have no gradient, as two nodes; k = 0, ..., `missed`.

    With `own` the step itself, which has one, is the first of the sum. `step = -1` stands for the start of an epoch.
    """
    reference = rule.spreads[max(step, 0)]
    m0 = m1 = m2 = m3 = 0.0  # moments of the measure in x = s - reference, so that nothing cancels
    decay = momentum = variance = 1.0
    for k in range(missed + 1):
        if k > 0:
            momentum *= rule.beta1
            variance *= rule.beta2
        if k > 0 or own:
            weight = rule.sizes[step + k] * momentum
            x = rule.spreads[step + k] * math.sqrt(variance) - reference
            decay *= rule.decay
            m0 = rule.decay * m0 + weight
            m1 = rule.decay * m1 + weight * x
            m2 = rule.decay * m2 + weight * x * x
            m3 = rule.decay * m3 + weight * x * x * x
        table[k, DECAY], table[k, MOMENTUM], table[k, VARIANCE] = decay, momentum, variance
        table[k, WEIGHT_1], table[k, NODE_1] = m0, reference + (m1 / m0 if m0 else 0.0)
        table[k, WEIGHT_2], table[k, NODE_2] = 0.0, reference
        determinant = m0 * m2 - m1 * m1
        if determinant > 1e-14 * m0 * m2:  # otherwise one node says it all
            # nodes are the roots of x^2 - b x - c, orthogonal to 1 and x
            b = (m0 * m3 - m1 * m2) / determinant
            c = (m2 * m2 - m1 * m3) / determinant
            half = math.sqrt(0.25 * b * b + c)
            low, high = 0.5 * b - half, 0.5 * b + half
            table[k, NODE_1], table[k, NODE_2] = reference + low, reference + high
            table[k, WEIGHT_1] = (high * m0 - m1) / (high - low)
            table[k, WEIGHT_2] = (m1 - low * m0) / (high - low)
