"""Which token does softmax attention pick, why, and how surely."""

# first, before anything is imported that could lie in the working folder
from whichtoken.working_folder import distrust_settings  # isort: split

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whichtoken.kernel_cache import ensure_kernel_cache, lock_kernel_cache

if TYPE_CHECKING:
    from whichtoken import attention as attention
    from whichtoken import data as data
    from whichtoken import estimators as estimators
    from whichtoken import flows as flows
    from whichtoken import inspection as inspection
    from whichtoken import lab as lab
    from whichtoken import margin as margin
    from whichtoken import models as models
    from whichtoken import optim as optim
    from whichtoken import report as report
    from whichtoken import theory as theory
    from whichtoken import training as training
    from whichtoken.estimators import AttentionRegressor, BagClassifier, GroupClassifier, TextClassifier

__version__ = "0.2.0"

# before anything imports matplotlib or numba
distrust_settings()
ensure_kernel_cache()
lock_kernel_cache()

_ESTIMATORS = ("AttentionRegressor", "BagClassifier", "GroupClassifier", "TextClassifier")
_ROOMS = (
    "attention",
    "data",
    "estimators",
    "flows",
    "inspection",
    "lab",
    "margin",
    "models",
    "optim",
    "report",
    "theory",
    "training",
)

__all__ = ["AttentionRegressor", "BagClassifier", "GroupClassifier", "TextClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    # imported when asked for, to keep this light
    if name in _ESTIMATORS:
        return getattr(import_module("whichtoken.estimators"), name)
    if name in _ROOMS:
        return import_module(f"whichtoken.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS, *_ROOMS})
