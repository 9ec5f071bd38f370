"""What the methods hand to the certificate: candidates, nothing of which is taken on trust."""

from __future__ import annotations

from dataclasses import dataclass

from whichtoken.norms import Vector


@dataclass(frozen=True)
class Solution:
    """Weights and multipliers, each up to a positive factor."""

    weights: Vector  # (columns,)
    multipliers: Vector  # (rows,)


@dataclass(frozen=True)
class Farkas:
    """Multipliers that combine the rows to zero, up to rounding, but their right-hand sides to something positive.

    Without the words "up to rounding" no weights exist; whether they can be left out is for a proof to say.
    """

    multipliers: Vector  # (rows,)
