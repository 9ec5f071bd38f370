"""l_p mirror descent on the key-query matrix of one attention head whose decoder stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.losses import Loss
from whichtoken.data.attention_tokens import AttentionProblem
from whichtoken.flows.joint import run_descent
from whichtoken.flows.mirror_steps import DescentState, Rule


@dataclass(frozen=True, eq=False)
class DescentResult:
    """Where the descent went and which tokens it selects."""

    final: DescentState
    snapshots: tuple[DescentState, ...]  # one per recorded step, in ascending order
    selected: NDArray[np.int64]  # (n,), the token of highest attention score in the final state
    last_change: int  # the first step from which on the selected tokens stayed the same

    @property
    def settled(self) -> bool:
        """Whether the selected tokens stayed the same throughout the last quarter of the steps."""
        return 4 * self.last_change <= 3 * self.final.step


def attention_descent(
    problem: AttentionProblem,
    start: ArrayLike,
    *,
    p: float,
    lr: float,
    steps: int,
    rule: Rule = "normalized",
    loss: Loss = "logistic",
    record: Iterable[int] = (),
) -> DescentResult:
    """Minimise the mean loss over W by l_p mirror descent: U <- U - step * G, W = sign(U) |U|^(1/(p-1)).

    The algorithm of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581, for a fixed decoder; G is the gradient in W.

    Parameters
    ----------
    problem
        Tokens (n, T, d), queries (n, d), labels (n,) and decoder (d,).
    start : (d, d)
        Initial W; zero is allowed.
    p
        Exponent of the geometry, above 1; 2 is gradient descent.
    lr, steps
        Step size and number of steps.
    rule
        `plain` steps are lr * G; `normalized` ones lr * G / |G|_q; `geometric` ones max(1, |U|_q) times that, a fast
        warm start whose error floors at O(lr). `flow` follows dU/dt = -G, to times like exp(400), in Euler steps along
        which attention scores change by about lr.
    loss
        l(m) of the label margin m: log(1 + exp(-m)), exp(-m) or -m by name, or a function that gives log |l'(m)|.
    record
        Step numbers between 0 (the start) and `steps` whose states are kept.
    """
    found = run_descent(problem, start, p=p, lr=lr, lr_decoder=0.0, steps=steps, rule=rule, loss=loss, record=record)
    snapshots = tuple(state.weights for state in found.snapshots)
    return DescentResult(found.final.weights, snapshots, found.selected, found.last_change)
