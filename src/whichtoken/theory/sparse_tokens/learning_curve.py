"""The error of attention at several times the pilot's size, with an interval, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import t

from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.design import LEAST, Design, best_design
from whichtoken.theory.sparse_tokens.pilot import FOLDS, PilotEstimate

MULTIPLES = (2, 5, 10)
RUN_TO_RUN = 1.3  # relative deviation of the test error between training runs, times sqrt(dim), as simulated


@dataclass(frozen=True)
class CurvePoint:
    """Predicted test error of attention with more data, its 95 % interval, and how to train for it."""

    samples: int
    error: float
    low: float
    high: float
    design: Design


def learning_curve(task: Task, estimate: PilotEstimate, known_prevalence: bool = False) -> Iterator[CurvePoint]:
    """Errors at multiples of the pilot's size, over the tasks that the pilot allows and the chance of a training run.

    Each candidate number of signal tokens gives a bell curve in the log-odds of the error; the interval is that of
    their mixture.
    """
    for multiple in MULTIPLES:
        samples = multiple * estimate.samples
        design = best_design(task, samples / estimate.dim)
        parts = list(_parts(task, estimate, known_prevalence, samples / estimate.dim, design))
        low, middle, high = (float(expit(_mixture_quantile(parts, level))) for level in (0.025, 0.5, 0.975))
        yield CurvePoint(samples, middle, low, high, design)


def _parts(
    task: Task, estimate: PilotEstimate, known_prevalence: bool, samples_per_dim: float, design: Design
) -> Iterator[tuple[float, float, float]]:
    """Weight, centre and scale of the log-odds of the error, for each candidate."""

    def log_odds(variant: Task) -> float:
        return float(logit(max(design.error(variant, samples_per_dim), LEAST)))

    centre = log_odds(task)
    shared = RUN_TO_RUN / math.sqrt(estimate.dim) / (1 - expit(centre))
    if not known_prevalence:
        step = math.sqrt(task.prevalence * (1 - task.prevalence) / estimate.samples)
        shared = math.hypot(shared, log_odds(replace(task, prevalence=task.prevalence + step)) - centre)
    for candidate in estimate.candidates:
        variant = replace(task, signal_tokens=candidate.signal_tokens)
        likely, weaker = (
            log_odds(replace(variant, strength=math.exp(candidate.log_strength - shift)))
            for shift in (0.0, candidate.deviation)
        )
        yield candidate.weight, likely, math.hypot(shared, weaker - likely)


def _mixture_quantile(parts: list[tuple[float, float, float]], level: float) -> float:
    """Quantile of a mixture of Student distributions; their degrees of freedom are those of the pilot's folds."""
    weights, centres, scales = np.transpose(parts)

    def excess(x: float) -> float:
        return float(weights @ t.cdf((x - centres) / scales, FOLDS - 1) / weights.sum()) - level

    reach = 20 * scales.max()
    return float(brentq(excess, centres.min() - reach, centres.max() + reach))
