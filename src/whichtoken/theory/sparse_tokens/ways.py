"""Ways to train attention that use every sample twice, beside the split of the theory: what to expect of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import expit, logit

from whichtoken.data.sparse_task import Task
from whichtoken.display.shown import Shown

# BagClassifier descends on query and readout together and chooses its own settings. That is as good as the two steps where
# few tokens carry the signal, and loses where many do: log-odds of its error over theirs, fitted on 50 simulated tasks of 5 to
# 20 tokens in 20 to 120 dimensions and judged on others (`sparse-tokens/planned`)
BAG_EXCESS = 2.1  # times (R/L)^2
POINTS = 1 << 13
ALIKE = 0.02  # relative difference of errors that is none


@dataclass(frozen=True)
class Way(Shown):
    """What to expect of one way to train attention."""

    error: float  # predicted test error with the planned samples
    samples_needed: int | None  # for the target; None without a target, or where no amount of data reaches it


def bag_error(task: Task, shared_error: float) -> float:
    """Expected error of `BagClassifier` where the two steps on all samples have this one."""
    return float(expit(logit(shared_error) + _excess(task)))


def shared_target(task: Task, target: float | None) -> float | None:
    """Error that the two steps on all samples must have for `BagClassifier` to reach the target."""
    return None if target is None else float(expit(logit(target) - _excess(task)))


def _excess(task: Task) -> float:
    return BAG_EXCESS * (task.signal_tokens / task.length) ** 2


def recommended(split: float, reuse: float, bag_classifier: float) -> str:
    """The way of the least predicted error; of equal ones `BagClassifier`, which chooses its own settings."""
    errors = {"BagClassifier": bag_classifier, "reuse": reuse, "split": split}
    known = {name: error for name, error in errors.items() if not math.isnan(error)}
    least = min(known.values(), default=math.nan)
    return next((name for name, error in known.items() if error <= (1 + ALIKE) * least), "BagClassifier")
