"""Attention sinks: tokens that take much of a head's attention whatever is asked."""

from __future__ import annotations

import torch
from torch import Tensor

from whichtoken.inspection.reading import Reading

THRESHOLD = 0.3  # mean attention over all queries, as in Gu et al. 2024, When attention sink emerges


def received(reading: Reading) -> Tensor:
    """Mean attention that each key gets from the queries that may see it: (batch, heads, keys)."""
    batch, heads, _, _ = reading.query.shape
    keys = reading.key.shape[2]
    mass = torch.zeros(batch, heads, keys, dtype=torch.float32, device=reading.query.device)
    askers = torch.zeros(batch, 1, keys, device=reading.query.device)
    for _, block in reading.blocks():
        real = block.seen()[:, None, :, None]
        allowed = block.mask.allowed(block.positions, keys) & real
        mass += (block.weights().float() * real).sum(2)
        askers = askers + allowed.sum(2)
    return mass / askers.clamp_min(1)


def sinks(reading: Reading, threshold: float = THRESHOLD) -> Tensor:
    """Flags of the keys (batch, heads, keys) that get more than `threshold` of the attention of all queries, on average."""
    return received(reading) > threshold
