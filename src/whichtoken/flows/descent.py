"""Descent of an attention head: of its key-query matrix by any of a dozen optimizers, or of matrix and decoder together.

Entrywise l_p mirror descent has a compiled loop of its own (`attention_kernels`), which also trains the decoder; every other
optimizer is a small compiled step (`steps`) that one loop calls (`trajectory_kernels`). All return a `DescentResult`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from whichtoken.attention.losses import Loss, compiled_log_slope
from whichtoken.checks import check_choice, check_count
from whichtoken.datasets.mirror_descent import AttentionProblem
from whichtoken.display.shown import Shown
from whichtoken.flows.attention_kernels import descend
from whichtoken.flows.mirror_steps import DescentState, Rule, check_rate, check_record, descent_state, rule_number
from whichtoken.flows.steps import optimizer_settings
from whichtoken.flows.steps.schatten import SchattenMirror
from whichtoken.flows.steps.settings import READ, STEP, Settings, check_not_negative
from whichtoken.margin import joint_limit
from whichtoken.margin.constraints import selection_constraints
from whichtoken.margin.key_query import decoder_svm
from whichtoken.norms import dual_exponent, power_norm, row_norms
from whichtoken.theory.mirror_descent import alternating_growth, mirror_map

Matrix = NDArray[np.float64]
LEAST_GROWTH = 1e-3  # the least share of its step that a block gains: no mixture of constraints is so wasteful
HUGE = 1e150  # weights whose squares would overflow


@dataclass(frozen=True, eq=False)
class JointState(Shown):
    """Key-query matrix and decoder after the same number of steps."""

    weights: DescentState  # (d, d)
    decoder: DescentState  # (d,)

    @property
    def step(self) -> int:
        return self.weights.step

    @property
    def ratio(self) -> float:
        """|v|_p / |W|_p, which decides where the direction of W ends; inf where it exceeds every float."""
        log_ratio = self.decoder.log_norm - self.weights.log_norm
        return math.exp(log_ratio) if log_ratio < 700.0 else math.inf


State = TypeVar("State", DescentState, JointState)


@dataclass(frozen=True, eq=False)
class DescentResult(Shown, Generic[State]):
    """Where a descent went and which tokens it selects: the result of `attention_descent` and `joint_descent`.

    Attributes
    ----------
    final : DescentState or JointState
        The state after the last step.
    snapshots : tuple
        One state per recorded step, in ascending order.
    selected : array of shape (n,)
        The token of highest attention score in the final state.
    last_change : int
        The first step from which on the selected tokens stayed the same.
    """

    final: State
    snapshots: tuple[State, ...]
    selected: NDArray[np.int64]
    last_change: int

    @property
    def settled(self) -> bool:
        """Whether the selected tokens stayed the same throughout the last quarter of the steps."""
        return 4 * self.last_change <= 3 * self.final.step

    def _headline(self) -> str:
        since = "the same tokens selected since" if self.settled else "selection still changed at"
        tokens = ", ".join(map(str, self.selected[:8].tolist())) + (", ..." if self.selected.size > 8 else "")
        return f"{self.final.step} steps, {since} step {self.last_change}; selects {tokens}"


def attention_descent(
    problem: AttentionProblem,
    start: ArrayLike | Sequence[ArrayLike],
    optimizer: str = "mirror",
    *,
    lr: float,
    steps: int,
    p: float | None = None,
    loss: Loss = "logistic",
    record: Iterable[int] = (),
    **options: Any,
) -> DescentResult[DescentState]:
    """Minimize the mean loss over the key-query matrix W of an attention head whose decoder stays as it is.

    Parameters
    ----------
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d), labels (n,) and decoder (d,).
    start : array_like of shape (d, d), or a list of factors
        Initial W, zero is allowed; or matrices whose product is W, [K, Q.T], which are then what is trained (`balanced_chain`
        makes them from W).
    optimizer : str, default="mirror"
        `mirror` or one of `whichtoken.flows.steps.OPTIMIZERS`: gd, normalized-gd, sign, coordinate, adam, adamw,
        lion, muon, shampoo, soap. Its options are keyword arguments, with the names and meanings of torch.optim where it has
        them.
    lr, steps : float and int
        Step size and number of steps.
    p : float, optional
        Exponent of the geometry of `mirror`, above 1; 2, the default, is gradient descent with normalized steps (`rule`).
    loss : str or callable, default="logistic"
        l(m) of the label margin m: log(1 + exp(-m)), exp(-m) or -m by name, or a function that gives log |l'(m)|.
    record : iterable of int, default=()
        Step numbers between 0 (the start) and `steps` whose states are kept.
    **options : options of the optimizer
        norm : "entrywise" or "schatten", of `mirror`: U <- U - step * G, W = sign(U) |U|^(1/(p-1)), of entries (Julistiono,
        Tarzanagh, Azizan, arXiv 2410.14581) or of singular values.
        rule : of `mirror`. `plain` steps are lr * G; `normalized` ones, the default, lr * G / |G|_q; `geometric` ones
        max(1, |U|_q) times that, a fast warm start whose error floors at O(lr). `flow` follows dU/dt = -G, to times like
        exp(400), in Euler steps along which attention scores change by about lr.
        lr_power : step k has size lr * k^-lr_power (not for entrywise `mirror`).

    Returns
    -------
    DescentResult
        The final state, the tokens that are selected, and the recorded states.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> from whichtoken.flows import attention_descent
    >>> from whichtoken.margin import key_query_svm
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionTokens().sample(rng)
    >>> run = attention_descent(problem, 1e-3 * rng.standard_normal((10, 10)), p=2.0, lr=1.0, steps=3000)
    >>> limit = key_query_svm(problem.tokens, problem.queries, run.selected)
    >>> float(np.vdot(run.final.direction, limit.direction)) > 0.99  # where theory says that it goes
    True
    >>> run = attention_descent(problem, np.zeros((10, 10)), "adam", lr=0.01, steps=100, betas=(0.9, 0.99), eps=0.0)
    >>> run.final.direction.shape
    (10, 10)
    """
    exponent = 2.0 if p is None else p
    if optimizer == "mirror" and options.get("norm", "entrywise") == "entrywise":
        options.pop("norm", None)
        rule = _check_mirror_options(options).get("rule", "normalized")
        found = run_mirror_descent(problem, start, exponent, lr, 0.0, steps, rule, loss, record)
        snapshots = tuple(state.weights for state in found.snapshots)
        return DescentResult(found.final.weights, snapshots, found.selected, found.last_change)
    lr_power = options.pop("lr_power", 0.0)
    if optimizer == "mirror":
        check_choice("norm", options.pop("norm"), ("entrywise", "schatten"))
        settings: Settings = SchattenMirror(p=exponent, **_check_mirror_options(options))
    else:
        if p is not None:
            raise ValueError(f"p={p} is the geometry of optimizer='mirror', {optimizer} has its own")
        settings = optimizer_settings(optimizer, options)
    return run_optimizer(problem, start, settings, lr, lr_power, steps, loss, record)


def _check_mirror_options(options: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(options) - {"rule"}):
        raise ValueError(f"mirror has no option {unknown[0]!r} in this norm; it has p, norm, rule")
    return options


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
) -> DescentResult[JointState]:
    """Minimize the mean loss over W and v by simultaneous l_p mirror steps.

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
    DescentResult
        The final W and v, their ratio, and the recorded states.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> from whichtoken.flows import joint_descent
    >>> problem = AttentionTokens().sample(np.random.default_rng(0))
    >>> run = joint_descent(problem, np.zeros((10, 10)), p=2.0, lr=1.0, lr_decoder=0.3, steps=100)
    >>> run.final.weights.direction.shape, run.final.decoder.direction.shape
    ((10, 10), (10,))
    """
    check_rate("lr_decoder", lr_decoder)
    return run_mirror_descent(problem, start, p, lr, lr_decoder, steps, rule, loss, record)


def joint_ratio(problem: AttentionProblem, selected: ArrayLike, *, p: float, lr: float, lr_decoder: float) -> float:
    """The ratio |v|_p / |W|_p that normalized joint steps tend to, from the selected tokens and the step sizes alone.

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

    Returns
    -------
    float
        The ratio.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> from whichtoken.flows import joint_ratio
    >>> problem = AttentionTokens(6, 5, 8).sample(np.random.default_rng(0))
    >>> best = problem.token_scores.argmax(axis=1)
    >>> round(joint_ratio(problem, best, p=2.0, lr=1.0, lr_decoder=0.3), 3)
    0.3
    >>> joint_ratio(problem, best, p=1.5, lr=1.0, lr_decoder=0.3) > 2 * 0.3**2
    True
    """
    if p >= 2.0:
        return math.pow(lr_decoder / lr, 1.0 / (p - 1.0))
    tokens = np.asarray(selected, dtype=np.int64)
    leads = selection_constraints(problem.tokens, problem.queries, tokens, 1.0).dense  # (m, d^2)
    decoder, chosen = decoder_svm(problem.tokens, problem.labels, tokens, p)
    margins = chosen @ decoder.require_direction("classified")
    gained = lr_decoder * _growth(chosen, decoder.multipliers, p)

    def excess(log_ratio: float) -> float:
        """log of the ratio that the growth at this one implies, less this one; it falls from above to below zero."""
        limit = joint_limit(problem.tokens, problem.queries, tokens, margins, math.exp(log_ratio), p)
        limit.require_direction()
        return math.log(gained / (lr * _growth(leads, limit.multipliers, p))) / (p - 1.0) - log_ratio

    least = math.log(gained / lr) / (p - 1.0)
    return math.exp(brentq(excess, least, least - math.log(LEAST_GROWTH) / (p - 1.0), xtol=1e-9))


def _growth(constraints: NDArray[np.float64], multipliers: NDArray[np.float64], p: float) -> float:
    """`alternating_growth` of a limit with these multipliers; constraints (m, k)."""
    q = dual_exponent(p)
    return alternating_growth(power_norm(multipliers @ constraints, q), multipliers, row_norms(constraints, q))


def run_mirror_descent(
    problem: AttentionProblem, start: Any, p: float, lr: float, lr_decoder: float, steps: int, rule: Rule, loss: Loss,
    record: Iterable[int],
) -> DescentResult[JointState]:  # fmt: skip
    """Entrywise l_p mirror descent of W and v; lr_decoder = 0 keeps v fixed."""
    weights = np.array(start, dtype=np.float64)
    dim = problem.decoder.shape[0]
    if weights.shape != (dim, dim) or not np.isfinite(weights).all():
        raise ValueError(f"start of shape {weights.shape} must be a finite matrix of shape {(dim, dim)}")
    recorded = check_record(record, steps)
    dual, decoder_dual = mirror_map(weights, p).ravel(), mirror_map(problem.decoder, p)
    kept, kept_logs = np.empty((recorded.size, dim * dim + dim)), np.empty((recorded.size, 3))
    tokens, queries, labels = (
        np.ascontiguousarray(x, dtype=np.float64) for x in (problem.tokens, problem.queries, problem.labels)
    )
    log_unit, decoder_log_unit, log_time, selected, last_change = descend(
        tokens, queries, labels, dual, decoder_dual, dual_exponent(p), check_rate("lr", lr), lr_decoder, steps,
        rule_number(rule), compiled_log_slope(loss), recorded, kept, kept_logs,
    )  # fmt: skip

    def state(step: int, duals: NDArray[np.float64], logs: NDArray[np.float64]) -> JointState:
        unit, decoder_unit, time = logs.tolist()
        return JointState(
            descent_state(step, p, duals[: dim * dim], unit, time, (dim, dim)),
            descent_state(step, p, duals[dim * dim :], decoder_unit, time, (dim,)),
        )

    final = state(steps, np.concatenate([dual, decoder_dual]), np.array([log_unit, decoder_log_unit, log_time]))
    snapshots = tuple(state(step, kept[row], kept_logs[row]) for row, step in enumerate(recorded.tolist()))
    return DescentResult(final, snapshots, selected, last_change)


def run_optimizer(
    problem: AttentionProblem, start: Any, settings: Settings, lr: float, lr_power: float, steps: int, loss: Loss,
    record: Iterable[int],
) -> DescentResult[DescentState]:  # fmt: skip
    """Any optimizer but entrywise mirror descent, on one matrix or on its factors."""
    # the import compiles the loop
    from whichtoken.flows.trajectory_kernels import follow

    dim = problem.tokens.shape[2]
    blocks = _blocks(start, dim)
    factored = len(blocks) > 1
    if isinstance(settings, SchattenMirror):
        if factored:
            raise ValueError("mirror descent in a Schatten norm takes one matrix: start must be one")
        left, values, right = np.linalg.svd(blocks[0], full_matrices=False)
        blocks = [(left * values ** (settings.p - 1.0)) @ right]
    check_not_negative("lr_power", lr_power)
    recorded = check_record(record, steps)
    shapes = np.array([block.shape for block in blocks], dtype=np.int64)
    parameters = np.concatenate([block.ravel() for block in blocks])
    memory_starts = _starts(settings.memory(rows, columns) for rows, columns in shapes.tolist())
    kept, kept_logs = np.empty((recorded.size + 1, dim * dim)), np.empty(recorded.size + 1)
    kept_parameters = np.empty((recorded.size + 1, parameters.size))
    tokens, queries = (np.require(x, requirements=["C", "W"]) for x in (problem.tokens, problem.queries))
    starts = _starts(map(math.prod, shapes.tolist()))
    for function, signature in ((settings.step, STEP), (settings.read, READ)):
        function.compile(signature)
    selected, last_change = follow(
        tokens, queries, problem.token_scores, compiled_log_slope(loss), parameters, starts, shapes,
        np.zeros(memory_starts[-1]), memory_starts, factored, settings.step, settings.read,
        np.array(settings.numbers(), dtype=np.float64), check_rate("lr", lr), float(lr_power), steps,
        recorded, kept, kept_logs, kept_parameters,
    )  # fmt: skip
    if not np.abs(kept).max(initial=0.0) < HUGE:
        raise ValueError(
            f"the weights left the range of numbers within {steps} steps: this optimizer diverges with lr={lr:g}"
        )

    def state(row: int, step: int) -> DescentState:
        norm = float(np.linalg.norm(kept[row]))
        direction = (kept[row] / norm if norm else kept[row]).reshape(dim, dim)
        factors = tuple(
            kept_parameters[row, first:last].reshape(block.shape)
            for block, (first, last) in zip(blocks, pairwise(starts.tolist()), strict=True)
        )
        log_norm = math.log(norm) + kept_logs[row] if norm else -math.inf
        # in the Frobenius norm, p = 2, the dual variable is W itself
        return DescentState(step, 2.0, direction, log_norm, math.nan, factors if factored else ())

    snapshots = tuple(state(row, step) for row, step in enumerate(recorded.tolist()))
    return DescentResult(state(-1, steps), snapshots, selected, last_change)


def _blocks(start: Any, dim: int) -> list[Matrix]:
    """The matrices that are trained: W, or factors that multiply to it."""
    listed = isinstance(start, list | tuple) and all(np.ndim(part) == 2 for part in start)
    parts = [np.array(part, dtype=np.float64) for part in (start if listed else [start])]
    shapes = [part.shape for part in parts]
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError("start must hold finite numbers")
    if len(parts) == 1 and shapes[0] != (dim, dim):
        raise ValueError(
            f"start of shape {shapes[0]} must be a matrix of shape {(dim, dim)}, or a list of factors that multiply to one"
        )
    if (shapes[0][0], shapes[-1][1]) != (dim, dim) or any(one[1] != two[0] for one, two in pairwise(shapes)):
        raise ValueError(f"start: factors of shapes {shapes} must multiply to a matrix of shape {(dim, dim)}")
    return parts


def _starts(sizes: Iterable[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *sizes], dtype=np.int64)


def balanced_chain(weights: ArrayLike, depth: int = 2) -> tuple[Matrix, ...]:
    """Square factors whose product is W, with equal singular values: gradient descent on them keeps them so, up to its steps.

    Parameters
    ----------
    weights : array_like of shape (d, d)
        W.
    depth : int, default=2
        Number of factors.

    Returns
    -------
    tuple of arrays
        The factors, from left to right.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import balanced_chain
    >>> first, second = balanced_chain(np.diag([4.0, 9.0]))
    >>> np.round(first @ second, 12)
    array([[4., 0.],
           [0., 9.]])
    """
    check_count("depth", depth, 2)
    left, values, right = np.linalg.svd(np.asarray(weights, dtype=np.float64))
    root = np.diag(values ** (1.0 / depth))
    return left @ root, *[root] * (depth - 2), root @ right
