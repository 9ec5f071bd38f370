"""Using it on your own data: the scikit-learn API on the same models, optimisers and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.estimators._explanation import Explanation
    from whichtoken.estimators.bags.classifier import BagClassifier
    from whichtoken.estimators.bags.planning import plan_study
    from whichtoken.estimators.groups.classifier import GroupClassifier
    from whichtoken.estimators.loading import load_estimator
    from whichtoken.estimators.regression import AttentionRegressor
    from whichtoken.estimators.text.classifier import TextClassifier

_HOME = {
    "AttentionRegressor": "regression",
    "BagClassifier": "bags.classifier",
    "Explanation": "_explanation",
    "GroupClassifier": "groups.classifier",
    "TextClassifier": "text.classifier",
    "load_estimator": "loading",
    "plan_study": "bags.planning",
}

__all__ = [
    "AttentionRegressor",
    "BagClassifier",
    "Explanation",
    "GroupClassifier",
    "TextClassifier",
    "load_estimator",
    "plan_study",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
