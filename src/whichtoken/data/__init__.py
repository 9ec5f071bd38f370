"""Where sequences come from: one generator or reader per file, loaded when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.data.attention_regression import AttentionRegression, RegressionProblem
    from whichtoken.data.attention_tokens import AttentionProblem, AttentionTokens
    from whichtoken.data.group_sparse import GroupSparse
    from whichtoken.data.sparse_tokens import SparseTokens

_HOME = {
    "AttentionProblem": "attention_tokens",
    "AttentionRegression": "attention_regression",
    "AttentionTokens": "attention_tokens",
    "GroupSparse": "group_sparse",
    "RegressionProblem": "attention_regression",
    "SparseTokens": "sparse_tokens",
}

__all__ = [
    "AttentionProblem",
    "AttentionRegression",
    "AttentionTokens",
    "GroupSparse",
    "RegressionProblem",
    "SparseTokens",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
