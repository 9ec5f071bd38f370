"""Exact directional dynamics: where descent in softmax attention goes, with gradients that survive saturation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.flows.cls import cls_flow
    from whichtoken.flows.descent import attention_descent
    from whichtoken.flows.joint import joint_descent, joint_ratio
    from whichtoken.flows.joint_path import joint_regularization_path
    from whichtoken.flows.limits import limit_problem
    from whichtoken.flows.linear import linear_descent
    from whichtoken.flows.margin_norms import margin_scale
    from whichtoken.flows.path import regularization_path
    from whichtoken.flows.trajectory import balanced_chain

_HOME = {
    "attention_descent": "descent",
    "balanced_chain": "trajectory",
    "cls_flow": "cls",
    "joint_descent": "joint",
    "joint_ratio": "joint",
    "joint_regularization_path": "joint_path",
    "limit_problem": "limits",
    "linear_descent": "linear",
    "margin_scale": "margin_norms",
    "regularization_path": "path",
}

__all__ = [
    "attention_descent",
    "balanced_chain",
    "cls_flow",
    "joint_descent",
    "joint_ratio",
    "joint_regularization_path",
    "limit_problem",
    "linear_descent",
    "margin_scale",
    "regularization_path",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
