"""The best way to spend samples on attention: how many on the query, and how sharp the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit

from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.alignment import TwoSteps, two_steps
from whichtoken.theory.sparse_tokens.feature_law import attention_law
from whichtoken.theory.sparse_tokens.readout import solve_readout
from whichtoken.theory.sparse_tokens.reuse import Training
from whichtoken.theory.sparse_tokens.saddle import SOLVED
from whichtoken.theory.sparse_tokens.token_noise import kept_points

Array = NDArray[np.float64]

LOSS = "logistic"
RIDGE = 1e-2
RIDGES = tuple(RIDGE * 10.0**k for k in range(7))  # where a smaller one would do worse than a constant answer
LEARNING_RATE = 0.5
LEARNING_RATES = (LEARNING_RATE, 5e-2, 5e-3, 5e-4)  # smaller ones where a strong signal makes the first step overshoot
WORTH = 0.02  # gain in alignment that makes a smaller step worth it
POINTS = 1 << 10
GRID_POINTS = 1 << 8
CHECK_POINTS = 1 << 13
LEAST = 1e-300  # stands for the errors of strong signals, which underflow, where a logarithm is taken
TEMPERATURES = (0.2, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.2, 0.45, 0.75)
COLDEST, WARMEST = 8.0, 0.05  # inverse temperatures
STRONG = 5.0  # strength beyond which warmer ones are looked at, in proportion
SHARE_BOUNDS = (float(logit(0.05)), float(logit(0.95)))


@dataclass(frozen=True)
class Design(Shown):
    """How to train attention with a given number of samples."""

    query_share: float  # of the samples that go into the two gradient steps; the rest trains the readout
    inverse_temperature: float  # inverse temperature times norm of the query
    bias_correction: bool  # put the bias at the log-odds of the prevalence before the step on the query
    alignment: float  # cosine of query and signal that results
    learning_rate: float = LEARNING_RATE  # of the step on the readout
    ridge: float = RIDGE

    def error(self, task: Task, samples_per_dim: float, points: int = POINTS) -> float:
        """Test error of this way to train, also with another task or number of samples than it was made for."""
        rule = (self.query_share, self.inverse_temperature, self.bias_correction)
        return design_error(task, samples_per_dim, *rule, points, learning_rate=self.learning_rate, ridge=self.ridge)


@dataclass(frozen=True)
class SharedDesign(Shown):
    """How to train attention with all samples, for the query and again for the readout."""

    inverse_temperature: float  # inverse temperature times norm of the query
    bias_correction: bool  # put the bias at the log-odds of the prevalence before the step on the query
    alignment: float  # cosine of query and signal that results
    learning_rate: float = LEARNING_RATE  # of the step on the readout
    ridge: float = RIDGE

    def error(self, task: Task, samples_per_dim: float, points: int = POINTS) -> float:
        """Test error of this way to train, also with another task or number of samples than it was made for."""
        rule = (self.inverse_temperature, self.ridge, self.bias_correction, self.learning_rate)
        return Training(task, samples_per_dim, *rule).solve(points)[0]


def query_steps(
    task: Task, samples_per_dim: float, bias_correction: bool, learning_rate: float = LEARNING_RATE
) -> TwoSteps:
    """Prediction for the two gradient steps with planning step sizes."""
    rates: dict[str, Any] = {"lr_readout": learning_rate, "lr_bias": LEARNING_RATE, "lr_query": LEARNING_RATE}
    rates |= {"samples_per_dim": samples_per_dim, "loss": LOSS, "bias_correction": bias_correction}
    return two_steps(**asdict(task), **rates)


def design_error(
    task: Task, samples_per_dim: float, query_share: float, inverse_temperature: float, bias_correction: bool,
    points: int = POINTS, *, learning_rate: float = LEARNING_RATE, ridge: float = RIDGE,
) -> float:  # fmt: skip
    """Test error of attention under a design, to about a percent: one small set of points, alike for all designs.

    Fewer points for sequences of thousands of tokens, so that their noise is drawn once for all designs. Not a number
    where the equations cannot be solved.
    """
    alignment = query_steps(task, query_share * samples_per_dim, bias_correction, learning_rate).alignment
    point = None
    # the solution for few points is near that for many
    for size in sorted({min(points, GRID_POINTS), kept_points(points, task.length)}):
        law = attention_law(task, alignment, inverse_temperature, size)
        point = solve_readout(law, LOSS, (1 - query_share) * samples_per_dim, ridge, point)
    if point is None or point.residual > SOLVED:
        return math.nan
    return law.error(
        point.query_overlap, point.signal_overlap, point.bias, point.signal_overlap**2 + point.rest_norm**2
    )


def least_ridge(error: Callable[[float], float], task: Task) -> float:
    """The smallest ridge whose error is not above that of a constant answer, which a large ridge always attains."""
    return next((ridge for ridge in RIDGES if error(ridge) <= task.trivial_error), RIDGES[-1])


@lru_cache(maxsize=64)
def best_design(task: Task, samples_per_dim: float, refine: bool = True) -> Design:
    """Least test error over query share and temperature; bias and first step are those that help the alignment.

    Without `refine` only a grid is searched, which is ten times cheaper.
    """
    correct, rate = _query_rule(task, samples_per_dim / 2)

    def design(x: Array, ridge: float = RIDGE) -> Design:
        share = float(expit(x[1]))
        alignment = query_steps(task, share * samples_per_dim, correct, rate).alignment
        return Design(share, math.exp(x[0]), correct, alignment, rate, ridge)

    def error(x: Array, points: int = POINTS) -> float:
        found = design(x).error(task, samples_per_dim, points)
        return math.inf if math.isnan(found) else found

    warmer = min(1.0, STRONG / max(task.strength, STRONG))
    temperatures = TEMPERATURES if warmer == 1 else (TEMPERATURES[0] * warmer, *TEMPERATURES)
    # where the signal is barely detectable the error is flat but for a valley, so a grid goes first
    grid = np.array([(math.log(tau), logit(share)) for tau in temperatures for share in SHARES])
    x = grid[np.argmin([error(x, GRID_POINTS) for x in grid])]
    if refine:
        simplex = x + np.array([[0, 0], [0.35, 0], [0, 0.5]])
        options = {"initial_simplex": simplex, "xatol": 0.05, "fatol": 1e-5, "maxfev": 20}
        bounds = ((math.log(WARMEST * warmer), math.log(COLDEST)), SHARE_BOUNDS)
        refined = minimize(error, x, method="Nelder-Mead", bounds=bounds, options=options).x
        # rare errors hang on few points, and a design can suit those and not the law: more points decide
        x = min(x, refined, key=lambda candidate: error(candidate, CHECK_POINTS))
    return design(x, least_ridge(lambda ridge: design(x, ridge).error(task, samples_per_dim), task))


@lru_cache(maxsize=64)
def best_shared_design(task: Task, samples_per_dim: float, refine: bool = True) -> SharedDesign:
    """Least test error over the temperature; without `refine` only a grid is searched."""
    correct, rate = _query_rule(task, samples_per_dim)
    alignment = query_steps(task, samples_per_dim, correct, rate).alignment

    def error(log_temperature: float, points: int = POINTS, ridge: float = RIDGE) -> float:
        design = SharedDesign(math.exp(log_temperature), correct, alignment, rate, ridge)
        found = design.error(task, samples_per_dim, points)
        return math.inf if math.isnan(found) else found

    warmer = min(1.0, STRONG / max(task.strength, STRONG))
    grid = np.log(TEMPERATURES if warmer == 1 else (TEMPERATURES[0] * warmer, *TEMPERATURES))
    errors = [error(x, GRID_POINTS) for x in grid]
    best = int(np.argmin(errors))
    x = float(grid[best])
    if refine:
        between = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
        refined = float(
            minimize_scalar(error, bounds=between, method="bounded", options={"xatol": 0.1, "maxiter": 8}).x
        )
        x = min(x, refined, key=lambda candidate: error(candidate, CHECK_POINTS))
    ridge = least_ridge(lambda value: error(x, ridge=value), task)
    return SharedDesign(math.exp(x), correct, alignment, rate, ridge)


def _query_rule(task: Task, samples_per_dim: float) -> tuple[bool, float]:
    """Whether to correct the bias, and how long the first step is to be."""
    # with correction first: where theory sees no difference a finite sample does, for the luck of its labels no longer counts
    rules = [(correct, rate) for rate in LEARNING_RATES for correct in (True, False)]
    best, best_alignment = rules[0], -math.inf
    for correct, rate in rules:
        alignment = query_steps(task, samples_per_dim, correct, rate).alignment
        if alignment > best_alignment + (WORTH if rate < best[1] else 0.0):
            best, best_alignment = (correct, rate), alignment
    return best
