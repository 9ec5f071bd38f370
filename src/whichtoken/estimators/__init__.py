"""Using it on your own data: the scikit-learn API on the same models, optimisers and predictions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.estimators._explanation import Explanation
    from whichtoken.estimators.bags.classifier import BagClassifier
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
}

__all__ = [
    "AttentionRegressor",
    "BagClassifier",
    "Explanation",
    "GroupClassifier",
    "TextClassifier",
    "load_estimator",
]


def __getattr__(name: str) -> Any:
    # imported when asked for: scikit-learn and torch take seconds to load
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
