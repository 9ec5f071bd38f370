"""l_p mirror descent on a linear classifier, the simpler model to compare attention with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.losses import Loss, compiled_log_slope
from whichtoken.display.shown import Shown
from whichtoken.flows.mirror_steps import (
    LOG_HUGE,
    DescentState,
    Rule,
    advance,
    check_rate,
    check_record,
    descent_state,
    later,
    log_length,
    primal,
    rule_number,
)
from whichtoken.norms import dual_exponent
from whichtoken.theory.mirror_descent import mirror_map


@dataclass(frozen=True, eq=False)
class LinearResult(Shown):
    """Where the descent went."""

    final: DescentState
    snapshots: tuple[DescentState, ...]  # one per recorded step, in ascending order

    def _headline(self) -> str:
        return f"{self.final.step} steps of l_{self.final.p:g} mirror descent, norm e^{self.final.log_norm:.3g}"


def linear_descent(
    features: ArrayLike,
    start: ArrayLike,
    *,
    p: float,
    lr: float,
    steps: int,
    rule: Rule = "normalized",
    loss: Loss = "logistic",
    record: Iterable[int] = (),
) -> LinearResult:
    """Minimize the mean loss of the margins <a_k, w> by l_p mirror descent.

    Its direction tends to that of the least |w|_p with <a_k, w> >= 1 (Sun, Gatmiry, Ahn, Azizan, arXiv 2306.13853).

    Parameters
    ----------
    features : array_like of shape (m, ...)
        a_k, label times features, each of the shape of w; those of `key_query_svm` are (x_selected - x_t) z^T.
    start : array_like
        Initial w, of the shape of one a_k; zero is allowed.
    p, lr, steps, rule, loss, record : as in `attention_descent`
        Geometry, step size, number and kind of steps, loss, and what is kept.

    Returns
    -------
    LinearResult
        The final state and the recorded ones.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import linear_descent
    >>> run = linear_descent([[2.0, 0.0], [0.0, 2.0]], np.zeros(2), p=2.0, lr=0.1, steps=500)
    >>> run.final.direction.round(3).tolist()
    [0.707, 0.707]
    """
    rows, weights = np.array(features, dtype=np.float64), np.array(start, dtype=np.float64)
    if rows.ndim < 2 or rows.shape[1:] != weights.shape:
        raise ValueError(
            f"features of shape {rows.shape} must be a list of arrays of the shape {weights.shape} of start"
        )
    if not (np.isfinite(rows).all() and np.isfinite(weights).all()):
        raise ValueError("features and start must be finite")
    recorded = check_record(record, steps)
    dual = mirror_map(weights, p).ravel()
    kept, kept_logs = np.empty((recorded.size, dual.size)), np.empty((recorded.size, 2))
    log_unit, log_time = _descend(
        rows.reshape(len(rows), -1), dual, dual_exponent(p), check_rate("lr", lr), steps, rule_number(rule),
        compiled_log_slope(loss), recorded, kept, kept_logs,
    )  # fmt: skip

    def state(step: int, at: NDArray[np.float64], logs: NDArray[np.float64]) -> DescentState:
        return descent_state(step, p, at, float(logs[0]), float(logs[1]), weights.shape)

    return LinearResult(
        state(steps, dual, np.array([log_unit, log_time])),
        tuple(state(step, kept[row], kept_logs[row]) for row, step in enumerate(recorded.tolist())),
    )


@njit(cache=True, nogil=True)
def _descend(
    features: Any, dual: Any, q: float, lr: float, steps: int, rule: int, log_slope: Any, recorded: Any, kept: Any,
    kept_logs: Any,
) -> Any:  # fmt: skip
    """Descend from features (m, d) and a dual variable (d,), in place; return the log-unit and the log-time.

    The dual variables and both logarithms of the recorded steps (r,) are written to kept (r, d) and kept_logs (r, 2).
    """
    weights = np.empty_like(dual)
    log_unit, log_time, row = 0.0, -math.inf, 0
    for step in range(steps + 1):
        if row < recorded.size and recorded[row] == step:
            kept[row] = dual
            kept_logs[row, 0], kept_logs[row, 1] = log_unit, log_time
            row += 1
        if step == steps:
            break
        log_size = primal(dual, log_unit, q, weights)
        margins = math.exp(min(log_size, LOG_HUGE)) * np.dot(features, weights)  # (m,)
        for k in range(margins.size):
            margins[k] = log_slope(margins[k])
        largest = margins.max()
        descent, log_scale = np.dot(np.exp(margins - largest), features), largest - math.log(margins.size)
        move = log_length(rule, lr, dual, log_unit, descent, log_scale, q)
        log_unit = advance(dual, log_unit, descent, move)
        log_time = later(log_time, move - log_scale)
    return log_unit, log_time
