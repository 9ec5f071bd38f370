"""What the methods hand to the certificate: candidates, nothing of which is taken on trust."""

from __future__ import annotations

from dataclasses import dataclass

from whichtoken.margin.norms import Vector


@dataclass(frozen=True)
class Solution:
    """Weights and multipliers, each up to a positive factor."""

    weights: Vector  # (columns,)
    multipliers: Vector  # (rows,)


@dataclass(frozen=True)
class Farkas:
    """Multipliers that combine the rows to zero but their right-hand sides to something positive: no weights exist."""

    multipliers: Vector  # (rows,)
