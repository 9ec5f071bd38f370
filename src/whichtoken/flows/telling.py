"""What a descent did, in one sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def told(steps: int, last_change: int, settled: bool, selected: NDArray[np.int64]) -> str:
    """How far it went and what it selects."""
    since = (
        f"the same tokens selected since step {last_change}"
        if settled
        else f"selection still changed at step {last_change}"
    )
    tokens = ", ".join(map(str, selected.ravel()[:8].tolist())) + (", ..." if selected.size > 8 else "")
    return f"{steps} steps, {since}; selects {tokens}"
