"""AttentionRegressor beside least squares and kernel ridge regression, on a real table and on the data of its theory.

The table is scikit-learn's diabetes (442 patients, ten measurements), ten folds three times. Kernel ridge regression has a
Gaussian kernel, its ridge and its width by the same five folds inside. The data of the theory are linear with noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.datasets import load_diabetes
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, RepeatedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from whichtoken import AttentionRegressor
from whichtoken.datasets import AttentionRegression
from whichtoken.lab.benchmark import CPU, Beside, Measure, cpu_seconds

PART = "Tables"
QUESTION = "Should I use an attention head for regression?"
WHY = {
    "least squares": {
        "win": (
            "By a few tenths of a percent, for a reason that was not investigated; that is not a reason to use a head for a "
            "table."
        ),
        "loss": (
            "On linear data with noise, least squares is the best there is and takes one factorization; a head adds the error "
            "of its context, and is trained in steps."
        ),
    },
    "kernel ridge regression": {
        "win": (
            "Two small factors are trained in a few steps; kernel ridge regression is solved again for every ridge, width and "
            "fold."
        ),
        "even": "On nearly linear data, a kernel finds nothing that a linear model misses.",
    },
}

Array = NDArray[np.float64]

LEAST_SQUARES, KERNEL = "least squares", "kernel ridge regression"
FOLDS, REPEATS, SEEDS = 10, 3, 10


def measure() -> Iterator[Measure]:
    """Yield errors beside those of the peers, and the times of a fit."""
    X, y = load_diabetes(return_X_y=True)
    folds = RepeatedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=0).split(X)
    cases = [(X[inside], y[inside], X[outside], y[outside]) for inside, outside in folds]
    yield from _compared(f"diabetes, {REPEATS} x {FOLDS} folds", cases)
    yield from _compared(f"linear data, n=800 d=6 4 outputs, {SEEDS} seeds", [_linear(seed) for seed in range(SEEDS)])


def _linear(seed: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    data = AttentionRegression(6, outputs=4, tokens=800, noise=0.5).sample(rng)
    tokens, clean = data.draw(1000, rng)
    return data.tokens, data.labels, tokens, clean


def _compared(case: str, problems: list[tuple[Array, Array, Array, Array]]) -> Iterator[Measure]:
    errors: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for X, y, fresh, truth in problems:
        for name, model in _models().items():
            times.setdefault(name, []).append(cpu_seconds(lambda: model.fit(X, y)))  # noqa: B023
            errors.setdefault(name, []).append(float(np.sqrt(np.mean((model.predict(fresh) - truth) ** 2))))
    ours, mine = np.array(errors["ours"]), float(np.median(times["ours"]))
    for name in (LEAST_SQUARES, KERNEL):
        theirs, needed = np.array(errors[name]), float(np.median(times[name]))
        beside = Beside(name, ours.mean(), theirs.mean(), "root mean square error", interval=_interval(ours - theirs))
        yield Measure(case, f"error over that of {name}", ours.mean() / theirs.mean(), 1.1, False, beside=beside)
        beside = Beside(name, mine, needed, CPU)
        yield Measure(case, f"fit time over that of {name}", mine / needed, 1e4, at_least=False, beside=beside)


def _models() -> dict[str, Any]:
    kernel = make_pipeline(StandardScaler(), KernelRidge(kernel="rbf"))
    grid = {"kernelridge__alpha": [0.01, 0.1, 1.0], "kernelridge__gamma": [0.001, 0.01, 0.1]}
    return {
        "ours": AttentionRegressor(random_state=0),
        LEAST_SQUARES: LinearRegression(),
        KERNEL: GridSearchCV(kernel, grid, cv=5),
    }


def _interval(difference: Array) -> tuple[float, float]:
    reach = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / math.sqrt(len(difference))
    return float(difference.mean() - reach), float(difference.mean() + reach)
