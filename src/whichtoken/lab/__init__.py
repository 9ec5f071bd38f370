"""Run many experiments: plan, ledger, engines, verdicts."""

from whichtoken.lab.borders import StressResult, stress
from whichtoken.lab.experiment import Experiment, Grid, Measured, Predicted, Row, Rows
from whichtoken.lab.reproduce import reproduce
from whichtoken.lab.results import Result
from whichtoken.lab.samples import Every, Exact, Mean, Resampled, Share, Worst, log_slope
from whichtoken.lab.verdicts import Check, Verdict, agreement, at_least, at_most, not_run, pooled

__all__ = [
    "Check", "Every", "Exact", "Experiment", "Grid", "Mean", "Measured", "Predicted", "Resampled", "Result", "Row",
    "Rows", "Share", "StressResult", "Verdict", "Worst", "agreement", "at_least", "at_most", "log_slope", "not_run",
    "pooled", "reproduce", "stress",
]  # fmt: skip
