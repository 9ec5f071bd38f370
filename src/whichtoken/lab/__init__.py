"""Run many experiments: plan, ledger, engines, verdicts."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from whichtoken.lab.borders import StressResult, stress


def __getattr__(name: str) -> Any:
    """The search of borders, which no other command needs, is loaded when it is used."""
    if name not in ("StressResult", "stress"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from whichtoken.lab import borders

    return getattr(borders, name)
