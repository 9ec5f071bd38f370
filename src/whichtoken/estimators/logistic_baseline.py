"""Logistic regression with a validated ridge: what a user would take instead."""

from __future__ import annotations

from inspect import signature
from typing import Any

from sklearn.linear_model import LogisticRegressionCV

FOLDS = 3  # each of which needs a row of every class


def logistic_baseline(**options: Any) -> LogisticRegressionCV:
    """The estimator with ten ridges, three folds and the log loss, unless `options` say otherwise."""
    # scikit-learn from 1.8 on asks for a choice between its old and its new form; before, there is only the old one
    if "use_legacy_attributes" in signature(LogisticRegressionCV).parameters:
        options = {"use_legacy_attributes": False, "l1_ratios": (0.0,), **options}
    return LogisticRegressionCV(**{"Cs": 10, "cv": FOLDS, "max_iter": 2000, "scoring": "neg_log_loss", **options})
