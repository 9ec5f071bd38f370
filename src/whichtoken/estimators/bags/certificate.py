"""The fewest instances whose deletion flips the decision of a one-query bag model.

With one query the score <w, X^T softmax(X q)> + b has the sign of sum_l exp(x_l . q) (x_l . w + b): a sum with one term per
instance. Deleting an instance deletes its term, so the largest terms of the decision's own sign, taken one after the other,
are the smallest set that flips it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counterfactual(Shown):
    """A provably smallest set of instances without which the decision is another one."""

    deleted: tuple[int, ...] | None  # None: no deletion that leaves an instance flips it
    decision: bool  # True: the positive class
    robust_to: int  # deleting this many instances, whichever, flips nothing

    def _headline(self) -> str:
        label = "positive" if self.decision else "negative"
        if self.deleted is None:
            return f"{label}, and no deletion changes it"
        these = "instance {} is" if len(self.deleted) == 1 else "instances {} are"
        return (
            f"{label} until {these.format(', '.join(map(str, self.deleted)))} deleted; no smaller deletion changes it"
        )


def smallest_deletion(scores: Array, values: Array) -> Counterfactual:
    """Certificate of one bag.

    Parameters
    ----------
    scores : array (L,)
        x_l . q.
    values : array (L,)
        x_l . w + b.
    """
    terms = np.exp(scores - scores.max()) * values
    positive = bool(terms.sum() > 0)
    order = np.argsort(-terms if positive else terms, kind="stable")
    # what is left after k deletions, summed from the other end: differences of sums would be rounding once little is left
    left = np.cumsum(terms[order][::-1])[::-1]  # (L,): left[k] without the first k
    flipped = (left <= 0) if positive else (left > 0)
    flipped[0] = False  # nothing is deleted
    if not flipped.any():
        return Counterfactual(None, positive, len(terms) - 1)
    count = int(np.argmax(flipped))
    return Counterfactual(tuple(int(i) for i in order[:count]), positive, count - 1)
