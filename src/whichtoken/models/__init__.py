"""What attends: one torch module per file, loaded when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.models.attention_pooling import AttentionPooling
    from whichtoken.models.group_probe import GroupTransformerProbe
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.models.key_query_attention import KeyQueryAttention
    from whichtoken.models.linear_baselines import PooledLinear, VectorizedLinear
    from whichtoken.models.softmax_regression import SoftmaxRegression

_HOME = {
    "AttentionPooling": "attention_pooling",
    "GroupTransformer": "group_transformer",
    "GroupTransformerProbe": "group_probe",
    "KeyQueryAttention": "key_query_attention",
    "PooledLinear": "linear_baselines",
    "SoftmaxRegression": "softmax_regression",
    "VectorizedLinear": "linear_baselines",
}

__all__ = [
    "AttentionPooling",
    "GroupTransformer",
    "GroupTransformerProbe",
    "KeyQueryAttention",
    "PooledLinear",
    "SoftmaxRegression",
    "VectorizedLinear",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
