"""What descents on attention have in common: which tokens they select, since when, and one sentence about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown


class Selecting(Shown):
    """A result with the `selected` tokens and the step of their `last_change`."""

    __slots__ = ()
    selected: NDArray[np.int64]
    last_change: int

    @property
    def _steps(self) -> int:
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether the selected tokens stayed the same throughout the last quarter of the steps."""
        return 4 * self.last_change <= 3 * self._steps

    def _headline(self) -> str:
        since = (
            f"the same tokens selected since step {self.last_change}"
            if self.settled
            else f"selection still changed at step {self.last_change}"
        )
        tokens = ", ".join(map(str, self.selected.ravel()[:8].tolist())) + (", ..." if self.selected.size > 8 else "")
        return f"{self._steps} steps, {since}; selects {tokens}"
