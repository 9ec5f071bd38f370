"""Which token does softmax attention pick, why, and how surely."""

from importlib import import_module
from typing import Any

from whichtoken.kernel_cache import ensure_kernel_cache

__version__ = "0.1.0"

ensure_kernel_cache()  # before anything imports numba

_ESTIMATORS = {
    "AttentionRegressor": "attention_regressor",
    "TextClassifier": "text_classifier",
    "BagClassifier": "bag_classifier",
    "GroupClassifier": "group_classifier",
}  # name -> file; imported on first use, to keep this light


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"whichtoken.estimators.{_ESTIMATORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ESTIMATORS])
