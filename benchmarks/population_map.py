"""Population gradient descent on group-sparse data: the exact map beside Monte Carlo batches of equal accuracy.

Eight groups, halfway through the selection. The key statistic is the force on the attention gap, E[g (H - n/sqrt(D-1))]
with g = sigmoid(-A H - B n); the Monte Carlo peer draws the margins alone, two normal numbers per sample, which is less
than any batch of the model costs. Its batch is doubled until its error, over twenty batches, is 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import expit

from whichtoken.lab.benchmark import Measure, cpu_seconds, speed_up
from whichtoken.theory.group_sparse import population_map

PART = "Training"
QUESTION = "What does gradient descent on the population cost, compared with sampling?"
WHY = {
    "Monte Carlo batches": {
        "win": (
            "Two margins determine the whole population, so a quadrature in two dimensions replaces sampling and has no noise "
            "to average away."
        ),
    },
}

GROUPS, LR, STEP = 8, 0.02, 200
ACCURACY, BATCHES = 1e-3, 20
TRAJECTORY = 3000


def measure() -> Iterator[Measure]:
    """Yield the ratio of the speeds at equal accuracy, the time of a whole trajectory and its numerical error."""
    estimate = _monte_carlo(np.random.default_rng(0))
    batch = _sufficient_batch(estimate)
    yield speed_up(
        f"D={GROUPS}, one step, error {ACCURACY:g}, batches of {batch}",
        lambda: population_map(groups=GROUPS, lr=LR, steps=1),
        lambda: estimate(batch),
        "Monte Carlo batches",
        target=100.0,
        repeats=9,
    )
    for lr, regime in ((LR, "stable"), (8.0, "overshooting")):
        case = f"D={GROUPS}, {TRAJECTORY} {regime} steps"
        time = cpu_seconds(lambda lr=lr: population_map(groups=GROUPS, lr=lr, steps=TRAJECTORY))  # type: ignore[misc]
        yield Measure(case, "s for the trajectory", time, 1.5, at_least=False)
        error = population_map(groups=GROUPS, lr=lr, steps=TRAJECTORY).error
        yield Measure(case, "relative difference of two quadrature sizes", error, 1e-9, at_least=False)


def _monte_carlo(rng: np.random.Generator) -> Callable[[int], float]:
    trajectory = population_map(groups=GROUPS, lr=LR, steps=STEP)
    alpha, attention = trajectory.alpha[-1], trajectory.attention[-1]
    A = alpha * GROUPS * attention
    B = alpha * GROUPS * (1 - attention) / math.sqrt(GROUPS - 1)

    def estimate(batch: int) -> float:
        H, n = np.abs(rng.standard_normal(batch)), rng.standard_normal(batch)
        return float(np.mean(expit(-A * H - B * n) * (H - n / math.sqrt(GROUPS - 1))))

    return estimate


def _sufficient_batch(estimate: Callable[[int], float]) -> int:
    """Smallest power of two whose estimates scatter by no more than the accuracy, measured at every size."""
    batch = 1 << 12
    while True:
        estimates = [estimate(batch) for _ in range(BATCHES)]
        if np.std(estimates, ddof=1) <= ACCURACY * np.mean(estimates):
            return batch
        batch *= 2
