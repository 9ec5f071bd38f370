"""l_p mirror descent on the key-query matrix and the decoder of one attention head together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from whichtoken.attention.losses import Loss, compiled_log_slope
from whichtoken.data.attention_tokens import AttentionProblem
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.flows.attention_kernels import descend
from whichtoken.flows.mirror_steps import (
    DescentState,
    Rule,
    checked_rate,
    checked_record,
    checked_rule,
    descent_state,
)
from whichtoken.flows.selecting import Selecting
from whichtoken.margin import joint_limit, prompt_svm
from whichtoken.margin.constraints import selection_constraints
from whichtoken.norms import dual_exponent, power_norm, row_norms
from whichtoken.theory.mirror_descent import alternating_growth, mirror_map

LEAST_GROWTH = 1e-3  # share of its step that a block surely gains: no mixture of constraints is so wasteful


@dataclass(frozen=True, eq=False)
class JointState(Shown):
    """Key-query matrix and decoder after the same number of steps."""

    weights: DescentState  # (d, d)
    decoder: DescentState  # (d,)

    @property
    def ratio(self) -> float:
        """|v|_p / |W|_p, which decides where the direction of W ends; inf where it exceeds every float."""
        log_ratio = self.decoder.log_norm - self.weights.log_norm
        return math.exp(log_ratio) if log_ratio < 700.0 else math.inf


@dataclass(frozen=True, eq=False)
class JointResult(Selecting):
    """Where the descent of both went and which tokens it selects."""

    final: JointState
    snapshots: tuple[JointState, ...]  # one per recorded step, in ascending order
    selected: NDArray[np.int64]  # (n,), the token of highest attention score in the final state
    last_change: int  # the first step from which on the selected tokens stayed the same

    @property
    def _steps(self) -> int:
        return self.final.weights.step


def joint_descent(
    problem: AttentionProblem,
    start: ArrayLike,
    *,
    p: float,
    lr: float,
    lr_decoder: float,
    steps: int,
    rule: Rule = "normalized",
    loss: Loss = "logistic",
    record: Iterable[int] = (),
) -> JointResult:
    """Minimise the mean loss over W and v by simultaneous l_p mirror steps.

    The joint algorithm of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581: both gradients are taken at the current
    (W, v), and `normalized` steps divide each by its own dual norm. These steps keep |v|_p / |W|_p near a constant that
    `joint_ratio` predicts, so the two step sizes choose the limit of W (`joint_limit`).

    Parameters
    ----------
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d), labels (n,) and the initial decoder (d,); zero is allowed.
    start : array_like of shape (d, d)
        Initial W; zero is allowed.
    p : float
        Exponent of the geometry, above 1; 2 is gradient descent.
    lr, lr_decoder : float
        Step sizes of W and v. Under `flow`, v moves lr_decoder / lr times as fast as dU/dt = -G says.
    steps, rule, loss, record : as in `attention_descent`
        How far, by which steps, on which loss, and what is kept.

    Returns
    -------
    JointResult
        The final W and v, their ratio, and the recorded states.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import AttentionTokens
    >>> from whichtoken.flows import joint_descent
    >>> problem = AttentionTokens().sample(np.random.default_rng(0))
    >>> run = joint_descent(problem, np.zeros((10, 10)), p=2.0, lr=1.0, lr_decoder=0.3, steps=100)
    >>> run.final.weights.direction.shape, run.final.decoder.direction.shape
    ((10, 10), (10,))
    """
    checked_rate("lr_decoder", lr_decoder)
    return run_descent(
        problem, start, p=p, lr=lr, lr_decoder=lr_decoder, steps=steps, rule=rule, loss=loss, record=record
    )


def joint_ratio(
    problem: AttentionProblem,
    selected: ArrayLike,
    *,
    p: float,
    lr: float,
    lr_decoder: float,
    small_steps: bool | None = None,
) -> float:
    """The ratio |v|_p / |W|_p that normalised joint steps tend to, from the selected tokens and the step sizes alone.

    Both blocks gain a share of every step, |U|_q = growth * lr * k, so that the ratio is (growth_v lr_decoder / (growth_W
    lr))^(1/(p-1)). Small steps lose nothing: both shares are 1. For p < 2 steps grow with W until single constraints take
    turns; the shares are then those of `alternating_growth`, and since that of W belongs to the member of the family
    (`joint_limit`) at this very ratio, the ratio solves an equation. Between the two, with steps of p < 2 that are not large
    yet, the ratio lies between both answers.

    Parameters
    ----------
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d) and labels (n,).
    selected : array_like of shape (n,)
        The token that each sequence ends with.
    p : float
        Exponent of the geometry, above 1.
    lr, lr_decoder : float
        Step sizes of W and v.
    small_steps : bool, optional
        Whether a step changes the scores by less than one; by default where p is at least 2.

    Returns
    -------
    float
        The ratio.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import AttentionTokens
    >>> from whichtoken.flows import joint_ratio
    >>> problem = AttentionTokens(6, 5, 8).sample(np.random.default_rng(0))
    >>> best = problem.token_scores.argmax(axis=1)
    >>> round(joint_ratio(problem, best, p=2.0, lr=1.0, lr_decoder=0.3), 3)
    0.3
    >>> joint_ratio(problem, best, p=1.5, lr=1.0, lr_decoder=0.3) > 2 * 0.3**2
    True
    """
    if p >= 2.0 if small_steps is None else small_steps:
        return math.pow(lr_decoder / lr, 1.0 / (p - 1.0))
    tokens = np.asarray(selected, dtype=np.int64)
    chosen = problem.labels[:, None] * problem.tokens[np.arange(len(tokens)), tokens]  # (n, d)
    leads = selection_constraints(problem.tokens, problem.queries, tokens, 1.0).dense  # (m, d^2)
    # tokens y x against zero: y v.x >= 1 is the max-margin problem of a linear classifier
    decoder = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0] * len(chosen), p=p)
    if decoder.direction is None:
        raise UsageError(f"the selected tokens {tokens.tolist()} cannot be classified: no limit exists")
    gained = lr_decoder * _growth(chosen, decoder.multipliers, p)
    margins = chosen @ decoder.direction

    def excess(log_ratio: float) -> float:
        """log of the ratio that the growth at this one implies, less this one; it falls from above to below zero."""
        limit = joint_limit(problem.tokens, problem.queries, tokens, margins, math.exp(log_ratio), p)
        if limit.direction is None:
            raise UsageError(f"the selected tokens {tokens.tolist()} cannot be separated: no limit exists")
        return math.log(gained / (lr * _growth(leads, limit.multipliers, p))) / (p - 1.0) - log_ratio

    least = math.log(gained / lr) / (p - 1.0)
    return math.exp(brentq(excess, least, least - math.log(LEAST_GROWTH) / (p - 1.0), xtol=1e-9))


def _growth(constraints: NDArray[np.float64], multipliers: NDArray[np.float64], p: float) -> float:
    """`alternating_growth` of a limit with these multipliers; constraints (m, k)."""
    q = dual_exponent(p)
    return alternating_growth(power_norm(multipliers @ constraints, q), multipliers, row_norms(constraints, q))


def run_descent(
    problem: AttentionProblem,
    start: ArrayLike,
    *,
    p: float,
    lr: float,
    lr_decoder: float,
    steps: int,
    rule: Rule,
    loss: Loss,
    record: Iterable[int],
) -> JointResult:
    """The descent behind `joint_descent` and, with lr_decoder = 0, behind `attention_descent`."""
    weights = np.array(start, dtype=np.float64)
    dim = problem.decoder.shape[0]
    if weights.shape != (dim, dim) or not np.isfinite(weights).all():
        raise ValueError(f"start of shape {weights.shape} must be a finite matrix of shape {(dim, dim)}")
    recorded = checked_record(record, steps)
    dual, decoder_dual = mirror_map(weights, p).ravel(), mirror_map(problem.decoder, p)
    kept, kept_logs = np.empty((recorded.size, dim * dim + dim)), np.empty((recorded.size, 3))
    log_unit, decoder_log_unit, log_time, selected, last_change = descend(
        np.ascontiguousarray(problem.tokens, dtype=np.float64),
        np.ascontiguousarray(problem.queries, dtype=np.float64),
        np.ascontiguousarray(problem.labels, dtype=np.float64),
        dual,
        decoder_dual,
        dual_exponent(p),
        checked_rate("lr", lr),
        lr_decoder,
        steps,
        checked_rule(rule),
        compiled_log_slope(loss),
        recorded,
        kept,
        kept_logs,
    )

    def state(step: int, duals: NDArray[np.float64], logs: NDArray[np.float64]) -> JointState:
        unit, decoder_unit, time = logs.tolist()
        return JointState(
            descent_state(step, p, duals[: dim * dim], unit, time, (dim, dim)),
            descent_state(step, p, duals[dim * dim :], decoder_unit, time, (dim,)),
        )

    return JointResult(
        final=state(steps, np.concatenate([dual, decoder_dual]), np.array([log_unit, decoder_log_unit, log_time])),
        snapshots=tuple(state(step, kept[row], kept_logs[row]) for row, step in enumerate(recorded.tolist())),
        selected=selected,
        last_change=last_change,
    )
