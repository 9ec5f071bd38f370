"""Attention on sparse tokens in high dimension: what it learns and how well, predicted without a simulation.

The theory of Barnfield, Cui, Lu, "High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification"
(arXiv 2509.25153), as functions: `two_steps` for the query, `erm` for the readout, `capacity` for separability, oracles
for what no amount of data can beat, and `plan` for the question a study begins with.
"""

from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.alignment import TwoSteps, two_steps
from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw, attention_law
from whichtoken.theory.sparse_tokens.finite_size import exact_error, exact_error_vectorized
from whichtoken.theory.sparse_tokens.forecasts import Plan
from whichtoken.theory.sparse_tokens.limits import (
    OracleError,
    SampledError,
    attention_oracle,
    bayes_floor,
    bayes_oracle,
    linear_oracle,
)
from whichtoken.theory.sparse_tokens.pilot import PilotEstimate, estimate_task
from whichtoken.theory.sparse_tokens.planner import plan
from whichtoken.theory.sparse_tokens.readout import Readout, erm
from whichtoken.theory.sparse_tokens.reuse import ReusedReadout, reused_erm
from whichtoken.theory.sparse_tokens.separability import capacity

__all__ = [
    "FeatureLaw",
    "OracleError",
    "PilotEstimate",
    "Plan",
    "Readout",
    "ReusedReadout",
    "SampledError",
    "Task",
    "TwoSteps",
    "attention_law",
    "attention_oracle",
    "bayes_floor",
    "bayes_oracle",
    "capacity",
    "erm",
    "estimate_task",
    "exact_error",
    "exact_error_vectorized",
    "linear_oracle",
    "plan",
    "reused_erm",
    "two_steps",
]
