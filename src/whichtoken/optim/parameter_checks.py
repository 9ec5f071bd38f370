"""What the torch optimisers here refuse of a parameter, in one wording."""

from __future__ import annotations

import torch
from torch import Tensor


def check_dtype(optimizer: str, name: str, param: Tensor) -> None:
    """Refuse what is neither float32 nor float64."""
    if param.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{optimizer} supports float32 and float64 parameters, but parameter {name} is {param.dtype}; "
            "keep float32 weights and use torch.autocast for lower precision"
        )


def check_dense(optimizer: str, name: str, gradient: Tensor) -> None:
    """Refuse a sparse gradient."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"{optimizer} does not support sparse gradients, please make that of parameter {name} dense "
            "(an embedding takes sparse=False)"
        )
