"""The error of `BagClassifier` at several sizes over the tasks that a pilot allows, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.design import LEAST, best_shared_design
from whichtoken.theory.sparse_tokens.pilot import PilotEstimate
from whichtoken.theory.sparse_tokens.ways import bag_error

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CurveLaw:
    """Log-odds of the error at several sizes for one number of signal tokens, and how they move with what is uncertain."""

    weight: float  # how plausible, relative to the others
    centres: Array  # (k,)
    strength_steps: Array  # (k,), for a signal that is weaker by one standard deviation of its logarithm
    prevalence_steps: Array  # (k,), for one standard deviation of the prevalence


def curve_laws(
    task: Task, estimate: PilotEstimate, samples: Sequence[float], known_prevalence: bool = False
) -> Iterator[CurveLaw]:
    """A law for each number of signal tokens that the pilot allows; each size has the design that is best for the task."""
    designs = [best_shared_design(task, size / estimate.dim, False) for size in samples]

    def log_odds(variant: Task) -> Array:
        errors = [design.error(variant, size / estimate.dim) for design, size in zip(designs, samples, strict=True)]
        known = np.clip(np.nan_to_num(errors, nan=variant.trivial_error), LEAST, variant.trivial_error)
        return np.asarray(logit([bag_error(variant, error) for error in known]))

    prevalence_steps = np.zeros(len(designs))
    if not known_prevalence:
        step = math.sqrt(task.prevalence * (1 - task.prevalence) / estimate.samples)
        prevalence_steps = log_odds(replace(task, prevalence=min(task.prevalence + step, 1 - step / 2))) - log_odds(
            task
        )
    for candidate in estimate.candidates:
        variant = replace(task, signal_tokens=candidate.signal_tokens)
        likely, weaker = (
            log_odds(replace(variant, strength=math.exp(candidate.log_strength - shift)))
            for shift in (0.0, candidate.deviation)
        )
        yield CurveLaw(candidate.weight, likely, weaker - likely, prevalence_steps)
