"""The best way to spend samples on attention: how many on the query, and how sharp the softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.alignment import TwoSteps, two_steps
from whichtoken.theory.sparse_tokens.feature_law import attention_law, kept_points
from whichtoken.theory.sparse_tokens.readout import solve_readout

Array = NDArray[np.float64]

LOSS = "logistic"
RIDGE = 1e-2
LEARNING_RATE = 0.5
POINTS = 1 << 10
GRID_POINTS = 1 << 8
CHECK_POINTS = 1 << 13
LEAST = 1e-300  # stands for the errors of strong signals, which underflow, where a logarithm is taken
TEMPERATURES = (0.2, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.2, 0.45, 0.75)
BOUNDS = ((math.log(0.05), math.log(8.0)), (logit(0.05), logit(0.95)))  # log inverse temperature, logit query share


@dataclass(frozen=True)
class Design:
    """How to train attention with a given number of samples."""

    query_share: float  # of the samples that go into the two gradient steps; the rest trains the readout
    inverse_temperature: float  # inverse temperature times norm of the query
    bias_correction: bool  # put the bias at the log-odds of the prevalence before the step on the query
    alignment: float  # cosine of query and signal that results


def query_steps(task: Task, samples_per_dim: float, bias_correction: bool) -> TwoSteps:
    """Prediction for the two gradient steps with planning step sizes."""
    return two_steps(
        length=task.length,
        signal_tokens=task.signal_tokens,
        strength=task.strength,
        prevalence=task.prevalence,
        samples_per_dim=samples_per_dim,
        lr_readout=LEARNING_RATE,
        lr_bias=LEARNING_RATE,
        lr_query=LEARNING_RATE,
        loss=LOSS,
        bias_correction=bias_correction,
    )


def design_error(
    task: Task,
    samples_per_dim: float,
    query_share: float,
    inverse_temperature: float,
    bias_correction: bool,
    points: int = POINTS,
) -> float:
    """Test error of attention under a design, to about a percent: one small set of points, alike for all designs.

    Fewer points for sequences of thousands of tokens, so that their noise is drawn once for all designs.
    """
    alignment = query_steps(task, query_share * samples_per_dim, bias_correction).alignment
    law = attention_law(task, alignment, inverse_temperature, kept_points(points, task.length))
    point = solve_readout(law, LOSS, (1 - query_share) * samples_per_dim, RIDGE)
    return law.error(
        point.query_overlap, point.signal_overlap, point.bias, point.signal_overlap**2 + point.rest_norm**2
    )


@lru_cache(maxsize=16)
def best_design(task: Task, samples_per_dim: float, refine: bool = True) -> Design:
    """Least test error over query share and temperature; the bias is corrected where that helps the alignment.

    Without `refine` only a grid is searched, which is ten times cheaper.
    """
    plain, corrected = (query_steps(task, samples_per_dim / 2, correct).alignment for correct in (False, True))
    correct = corrected > plain

    def error(x: Array, points: int = POINTS) -> float:
        return design_error(task, samples_per_dim, float(expit(x[1])), math.exp(x[0]), correct, points)

    # where the signal is barely detectable the error is flat but for a valley, so a grid goes first
    grid = np.array([(math.log(tau), logit(share)) for tau in TEMPERATURES for share in SHARES])
    x = grid[np.argmin([error(x, GRID_POINTS) for x in grid])]
    if refine:
        simplex = x + np.array([[0, 0], [0.35, 0], [0, 0.5]])
        options = {"initial_simplex": simplex, "xatol": 0.05, "fatol": 1e-5, "maxfev": 20}
        refined = minimize(error, x, method="Nelder-Mead", bounds=BOUNDS, options=options).x
        # rare errors hang on few points, and a design can suit those and not the law: more points decide
        x = min(x, refined, key=lambda candidate: error(candidate, CHECK_POINTS))
    share = float(expit(x[1]))
    return Design(share, math.exp(x[0]), correct, query_steps(task, share * samples_per_dim, correct).alignment)
