"""What attends: one torch module per file, loaded when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.models.attention_modules import ClsAttentionModule, TwoLayerAttentionModule
    from whichtoken.models.attention_pooling import AttentionPooling
    from whichtoken.models.cls_attention import ClsAttention
    from whichtoken.models.diagnostics import attention_diagnostics
    from whichtoken.models.group_probe import GroupTransformerProbe
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.models.key_query_attention import KeyQueryAttention
    from whichtoken.models.linear_baselines import PooledLinear, VectorizedLinear
    from whichtoken.models.sentiment_transformer import SentimentTransformer
    from whichtoken.models.softmax_regression import SoftmaxRegression
    from whichtoken.models.token_encoder import TokenEncoder
    from whichtoken.models.two_layer_attention import TwoLayerAttention
    from whichtoken.models.vision_transformer import VisionTransformer

_HOME = {
    "AttentionPooling": "attention_pooling",
    "ClsAttention": "cls_attention",
    "ClsAttentionModule": "attention_modules",
    "GroupTransformer": "group_transformer",
    "GroupTransformerProbe": "group_probe",
    "KeyQueryAttention": "key_query_attention",
    "PooledLinear": "linear_baselines",
    "SentimentTransformer": "sentiment_transformer",
    "SoftmaxRegression": "softmax_regression",
    "TokenEncoder": "token_encoder",
    "TwoLayerAttention": "two_layer_attention",
    "TwoLayerAttentionModule": "attention_modules",
    "VectorizedLinear": "linear_baselines",
    "VisionTransformer": "vision_transformer",
    "attention_diagnostics": "diagnostics",
}

__all__ = [
    "AttentionPooling",
    "ClsAttention",
    "ClsAttentionModule",
    "GroupTransformer",
    "GroupTransformerProbe",
    "KeyQueryAttention",
    "PooledLinear",
    "SentimentTransformer",
    "SoftmaxRegression",
    "TokenEncoder",
    "TwoLayerAttention",
    "TwoLayerAttentionModule",
    "VectorizedLinear",
    "VisionTransformer",
    "attention_diagnostics",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
