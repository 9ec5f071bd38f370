"""Where a decoder ends that is trained together with attention: the max-margin classifier of the selected tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from whichtoken.data import AttentionProblem


def decoder_limit(
    problem: AttentionProblem, selected: NDArray[np.int64], p: float
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """The max-margin direction (d,) of a classifier of the selected tokens, its margin, and that of each token (n,)."""
    from whichtoken.margin import prompt_svm

    chosen = problem.labels[:, None] * problem.tokens[np.arange(len(selected)), selected]  # (n, d)
    # tokens y x against zero: y v.x >= 1 is the max-margin problem of a linear classifier
    decoder = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0] * len(chosen), p=p)
    if decoder.direction is None:
        raise ValueError(f"the selected tokens {selected.tolist()} cannot be classified: no limit exists")
    return decoder.direction, decoder.margin, chosen @ decoder.direction
