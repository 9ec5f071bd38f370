"""Predicting the test error of attention on sparse tokens, beside simulating it.

A simulation knows the error up to its standard error, which falls with the square root of the trials: its cost for the
accuracy of the prediction follows from the deviation and the time of a few dozen measured trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from whichtoken.claims.sparse_tokens._tasks import attended_features
from whichtoken.datasets import SparseTokens
from whichtoken.estimators import plan_study
from whichtoken.lab.benchmark import CPU, Beside, Measure, cpu_seconds
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens import feature_law, token_noise
from whichtoken.theory.sparse_tokens.convex_head import ConvexHead, fit_head
from whichtoken.theory.sparse_tokens.two_step import attention_features

PART = "Planning a study"
QUESTION = "What does predicting the error exactly cost, compared with simulating it?"
WHY = {
    "full simulation": {
        "win": "The theory solves for a few numbers once; a simulation has to average its noise away.",
    },
    "fast simulation": {
        "win": "The same reason, although this simulation saves work by drawing the attended features directly.",
    },
}

TASK: dict[str, Any] = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
QUERY: dict[str, Any] = {"alignment": 0.9, "inverse_temperature": 1.0}
RIDGE, SAMPLES_PER_DIM, ACCURACY = 1e-2, 2.0, 1e-3
CASE = "L=10 R=1 theta=5 pi=.5, s_q=.9 tau=1 alpha=2 ridge=1e-2"
DIM, TRIALS, REPEATS = 500, 30, 5


def measure() -> Iterator[Measure]:
    """Time the prediction, both simulations, a grid, the baselines and the planner, on one core."""
    with threadpool_limits(1):
        predict()  # compilation is not what is compared
        ours = median(cpu_seconds(predict_afresh) for _ in range(REPEATS))
        prediction = predict()
        relative = prediction.error_estimate / prediction.test_error
        yield Measure(CASE, "seconds for the test error", ours, 1.0, at_least=False)
        yield Measure(CASE, "its relative error estimate", relative, ACCURACY, at_least=False)
        for name, features, target in (("full", full_features, 200.0), ("fast", fast_features, 50.0)):
            yield simulation(name, features, target, ours)
        yield Measure("20 alphas from .2 to 20", "seconds with warm starts", cpu_seconds(grid), 5.0, at_least=False)
        for model in ("pooled", "vectorized"):
            baseline(model)
            time = median(cpu_seconds(lambda model=model: baseline(model)) for _ in range(REPEATS))  # type: ignore[misc]
            yield Measure(f"{model}, alpha=2 ridge=1e-2", "milliseconds", 1e3 * time, 20.0, at_least=False)
        yield Measure("plan, d=300, target .05", "seconds", cpu_seconds(plan_for_target), 10.0, at_least=False)
        yield Measure("plan, pilot of 300 bags, d=100", "seconds", cpu_seconds(plan_from_pilot), 10.0, at_least=False)


def predict(
    samples_per_dim: float = SAMPLES_PER_DIM, start: sparse_tokens.Readout | None = None
) -> sparse_tokens.Readout:
    return sparse_tokens.erm(
        **TASK, **QUERY, samples_per_dim=samples_per_dim, ridge=RIDGE, accuracy=ACCURACY, start=start
    )


def predict_afresh() -> None:
    """The prediction with nothing remembered: its random points and feature law are part of the time."""
    feature_law._sampled_law.cache_clear()
    token_noise._kept_normals.cache_clear()
    token_noise._sobol.cache_clear()
    predict()


def simulation(
    name: str, features: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]], target: float, ours: float
) -> Measure:
    """Cost of reaching the prediction's accuracy by trials, relative to the prediction."""
    rng = np.random.default_rng(0)
    signal, query = np.zeros(DIM), np.zeros(DIM)
    signal[:2], query[0] = (0.9, math.sqrt(1 - 0.81)), 1.0
    heads: list[ConvexHead] = []

    def trial() -> None:
        heads.append(fit_head(*features(rng), RIDGE))

    trial()
    times = [cpu_seconds(trial) for _ in range(TRIALS)]
    errors = [sparse_tokens.exact_error(h.readout, h.bias, signal, query=query, **TASK) for h in heads[1:]]
    # two standard errors on both sides, and no credit for a prediction better than asked
    needed = (2 * float(np.std(errors, ddof=1)) / (ACCURACY * float(np.mean(errors)))) ** 2
    theirs = needed * median(times)
    detail = f"{ours:.3g} s against {needed:.0f} trials of {median(times):.3g} s; simulated error {np.mean(errors):.4f}"
    what, beside = (
        f"times faster than the {name} simulation at d={DIM}",
        Beside(f"{name} simulation", ours, theirs, CPU),
    )
    return Measure(CASE, what, theirs / ours, target, detail=detail, beside=beside)


def full_features(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw every token, then attend."""
    signal, query = np.zeros(DIM), np.zeros(DIM)
    signal[:2], query[0] = (0.9, math.sqrt(1 - 0.81)), 1.0
    source = SparseTokens(**TASK, dim=DIM, signal=signal)
    return attention_features(source.stream(int(SAMPLES_PER_DIM * DIM), rng), query)


def fast_features(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the features themselves, exact in distribution."""
    source = SparseTokens(**TASK, dim=DIM)
    return attended_features(source, int(SAMPLES_PER_DIM * DIM), 0.9, 1.0, rng)


def grid() -> None:
    solution = None
    for alpha in np.geomspace(0.2, 20, 20):
        solution = predict(float(alpha), solution)


def baseline(model: str) -> None:
    sparse_tokens.erm(model=model, **TASK, samples_per_dim=SAMPLES_PER_DIM, ridge=RIDGE)


def plan_for_target() -> None:
    sparse_tokens.plan(**TASK, dim=300, target_error=0.05)


def plan_from_pilot() -> None:
    pilot = SparseTokens(**TASK, dim=100).sample(300, np.random.default_rng(0))
    plan_study(pilot=pilot)
