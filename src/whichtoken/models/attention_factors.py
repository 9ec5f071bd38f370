"""The four factors of an attention head, out of the tensors in which torch keeps those of all heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unfused(output: Tensor, stacked: Tensor) -> list[Tensor]:
    """Views W_O, W_V, W_K, W_Q of `out_proj.weight` (out, r) and `in_proj_weight` (3 r, d) of an `nn.MultiheadAttention`."""
    query, key, value = stacked.chunk(3)
    return [output, value, key, query]


def fused(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from W_O, W_V, W_K, W_Q to output and stacked input projections."""
    output, value, key, query = factors
    return [output, torch.cat([query, key, value])]


def split_heads(factors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """W_O (out, h r) as (h, out, r), the factors behind it (h r, d) as (h, r, d)."""
    output, *inputs = factors
    return [
        output.reshape(len(output), heads, -1).movedim(1, 0),
        *(factor.reshape(heads, -1, factor.shape[1]) for factor in inputs),
    ]


def join_heads(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from factors with a leading axis of heads."""
    output, *inputs = factors
    return [output.movedim(0, 1).flatten(1), *(factor.flatten(0, 1) for factor in inputs)]
