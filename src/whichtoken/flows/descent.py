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
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d), labels (n,) and decoder (d,).
    start : array_like of shape (d, d)
        Initial W; zero is allowed.
    p : float
        Exponent of the geometry, above 1; 2 is gradient descent.
    lr, steps : float and int
        Step size and number of steps.
    rule : {"plain", "normalized", "geometric", "flow"}, default="normalized"
        `plain` steps are lr * G; `normalized` ones lr * G / |G|_q; `geometric` ones max(1, |U|_q) times that, a fast
        warm start whose error floors at O(lr). `flow` follows dU/dt = -G, to times like exp(400), in Euler steps along
        which attention scores change by about lr.
    loss : str or callable, default="logistic"
        l(m) of the label margin m: log(1 + exp(-m)), exp(-m) or -m by name, or a function that gives log |l'(m)|.
    record : iterable of int, default=()
        Step numbers between 0 (the start) and `steps` whose states are kept.

    Returns
    -------
    DescentResult
        The final state, the tokens that are selected, and the recorded states.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import AttentionTokens
    >>> from whichtoken.flows import attention_descent
    >>> from whichtoken.margin import key_query_svm
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionTokens().sample(rng)
    >>> run = attention_descent(problem, 1e-3 * rng.standard_normal((10, 10)), p=2.0, lr=1.0, steps=3000)
    >>> limit = key_query_svm(problem.tokens, problem.queries, run.selected)
    >>> float(np.vdot(run.final.direction, limit.direction)) > 0.99  # where theory says that it goes
    True
    """
    found = run_descent(problem, start, p=p, lr=lr, lr_decoder=0.0, steps=steps, rule=rule, loss=loss, record=record)
    snapshots = tuple(state.weights for state in found.snapshots)
    return DescentResult(found.final.weights, snapshots, found.selected, found.last_change)
