"""Compiled l_p mirror descent on the key-query matrix of one attention head, exact however far the softmax saturates.

Once one token wins, the gradient shrinks like exp(-|W|) while W grows without bound. Neither is ever formed: the
gradient is carried as (log-scale, direction), the dual variable as (log-norm, unit vector).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from whichtoken.data.attention_tokens import AttentionProblem
from whichtoken.margin.norms import dual_exponent, power_norm
from whichtoken.theory.mirror_descent import inverse_mirror_map, mirror_map

Rule = Literal["plain", "normalized", "geometric"]
Loss = Literal["logistic", "exponential", "linear"]

_RULES: dict[str, int] = {"plain": 0, "normalized": 1, "geometric": 2}
_LOSSES: dict[str, int] = {"logistic": 0, "exponential": 1, "linear": 2}
_LOG_HUGE = 650.0  # scores are capped at exp(650): their differences then still fit into a float64
_RESCALE_ABOVE = 1e100


@dataclass(frozen=True, eq=False)
class DescentState:
    """The dual variable U after `step` steps, as exp(log_dual_norm) times a matrix of unit l_q norm."""

    step: int
    p: float
    dual: NDArray[np.float64]  # (d, d), unit l_q norm (zero if U is)
    log_dual_norm: float  # log |U|_q

    @property
    def direction(self) -> NDArray[np.float64]:
        """W / |W|_p, (d, d)."""
        return inverse_mirror_map(self.dual, self.p)

    @property
    def log_norm(self) -> float:
        """Logarithm of |W|_p, finite even where |W|_p is not."""
        return self.log_dual_norm / (self.p - 1.0)


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
        warm start whose error floors at O(lr).
    loss
        l(m) of the label margin m: log(1 + exp(-m)), exp(-m) or -m.
    record
        Step numbers between 0 (the start) and `steps` whose states are kept.
    """
    weights = np.array(start, dtype=np.float64)
    dim = problem.decoder.shape[0]
    recorded = np.unique(np.fromiter(record, dtype=np.int64))
    if weights.shape != (dim, dim) or not np.isfinite(weights).all():
        raise ValueError(f"start of shape {weights.shape} must be a finite matrix of shape {(dim, dim)}")
    if not 0.0 < lr < math.inf:
        raise ValueError(f"lr={lr} must be a finite positive number")
    if steps < 0:
        raise ValueError(f"steps={steps} must not be negative")
    if recorded.size and not 0 <= recorded[0] <= recorded[-1] <= steps:
        raise ValueError(f"record={recorded.tolist()} must lie between 0 and steps={steps}")
    for field, value, known in (("rule", rule, _RULES), ("loss", loss, _LOSSES)):
        if value not in known:
            raise ValueError(f"{field}={value!r} must be one of {', '.join(known)}")

    dual = mirror_map(weights, p)
    kept = np.empty((recorded.size, dim, dim))
    kept_log_units = np.empty(recorded.size)
    log_unit, selected, last_change = _descend(
        np.ascontiguousarray(problem.tokens, dtype=np.float64),
        np.ascontiguousarray(problem.queries, dtype=np.float64),
        np.ascontiguousarray(problem.token_scores, dtype=np.float64),
        dual,
        dual_exponent(p),
        lr,
        steps,
        _RULES[rule],
        _LOSSES[loss],
        recorded,
        kept,
        kept_log_units,
    )
    return DescentResult(
        final=_state(steps, p, dual, log_unit),
        snapshots=tuple(_state(step, p, kept[row], kept_log_units[row]) for row, step in enumerate(recorded.tolist())),
        selected=selected,
        last_change=last_change,
    )


def _state(step: int, p: float, dual: NDArray[np.float64], log_unit: float) -> DescentState:
    norm = power_norm(dual, dual_exponent(p))
    if norm == 0.0:
        return DescentState(step, p, dual, -math.inf)
    return DescentState(step, p, dual / norm, math.log(norm) + log_unit)


@njit(cache=True, nogil=True)
def _descend(
    tokens: Any,  # (n, T, d)
    queries: Any,  # (n, d)
    gamma: Any,  # (n, T) token scores
    dual: Any,  # (d, d), updated in place: U = exp(log_unit) * dual
    q: float,
    lr: float,
    steps: int,
    rule: int,
    loss: int,
    recorded: Any,  # (r,) ascending
    kept: Any,  # (r, d, d) out
    kept_log_units: Any,  # (r,) out
) -> Any:
    selected = np.zeros(tokens.shape[0], dtype=np.int64)
    previous = np.zeros_like(selected)
    weights = np.empty_like(dual)
    log_unit, last_change, row = 0.0, 0, 0
    for step in range(steps + 1):
        if row < recorded.size and recorded[row] == step:
            kept[row] = dual
            kept_log_units[row] = log_unit
            row += 1
        peak = _peak(dual)
        log_size = _primal(dual, peak, log_unit, q, weights)
        descent, log_scale = _log_gradient(tokens, queries, gamma, weights, log_size, loss, selected)
        if step > 0 and not np.array_equal(selected, previous):
            last_change = step
        previous[:] = selected
        norm = _norm(descent, _peak(descent), q)
        if step == steps or norm == 0.0:
            continue
        if rule == 0:
            length = lr * math.exp(log_scale - log_unit)
        elif rule == 1:
            length = lr * math.exp(-log_unit) / norm
        else:
            length = lr * max(math.exp(-log_unit), _norm(dual, peak, q)) / norm
        dual += length * descent
        if peak > _RESCALE_ABOVE:
            dual /= peak
            log_unit += math.log(peak)
    return log_unit, selected, last_change


@njit(cache=True, nogil=True)
def _primal(dual: Any, peak: float, log_unit: float, q: float, weights: Any) -> float:
    """Write W / max|W| and return log max|W|."""
    if peak == 0.0:
        weights[:] = 0.0
        return -math.inf
    for j in range(dual.shape[0]):
        for k in range(dual.shape[1]):
            weights[j, k] = math.copysign(_power(abs(dual[j, k]) / peak, q - 1.0), dual[j, k])
    return (q - 1.0) * (math.log(peak) + log_unit)


@njit(cache=True, nogil=True)
def _log_gradient(
    tokens: Any, queries: Any, gamma: Any, weights: Any, log_size: float, loss: int, selected: Any
) -> tuple[Any, float]:
    """-dL/dW as a matrix (d, d) and the log of its factor; writes the winning tokens to `selected`.

    With the winner k of sequence i, dL/dW = mean_i l'(m_i) sum_t s_it (gamma_it - m_i) (x_it - x_ik) z_i^T, because
    s_it (gamma_it - m_i) sums to zero over t. The winner's own term, a difference of nearly equal numbers, drops out,
    and the largest of the other weights can be divided out before any is exponentiated.
    """
    sequences, length, dim = tokens.shape
    size = math.exp(min(log_size, _LOG_HUGE))
    keys = np.dot(queries, weights.T)  # (n, d)
    log_pulls = np.empty(
        (sequences, length)
    )  # log of |l'(m_i)| s_it |gamma_it - m_i|, -inf for the winner and its copies
    signs = np.empty((sequences, length))  # of gamma_it - m_i
    for i in range(sequences):
        selected[i] = _attend(tokens[i], keys[i], gamma[i], size, loss, log_pulls[i], signs[i])
    largest = log_pulls.max()
    moves = np.zeros((sequences, dim))
    if largest > -math.inf:
        for i in range(sequences):
            for t in range(length):
                factor = signs[i, t] * math.exp(log_pulls[i, t] - largest)
                for j in range(dim):
                    moves[i, j] += factor * (tokens[i, t, j] - tokens[i, selected[i], j])
    return np.dot(moves.T, queries), largest - math.log(sequences)


@njit(cache=True, nogil=True)
def _attend(tokens: Any, key: Any, gamma: Any, size: float, loss: int, log_pulls: Any, signs: Any) -> Any:
    """Write log of |l'(m)| s_t |gamma_t - m| and the sign of gamma_t - m for one sequence, return the winning token."""
    length, dim = tokens.shape
    for t in range(length):
        score = 0.0
        for j in range(dim):
            score += tokens[t, j] * key[j]
        log_pulls[t] = score
    winner = np.argmax(log_pulls)
    best = log_pulls[winner]
    total, shortfall = 0.0, 0.0
    for t in range(length):
        log_pulls[t] = size * (log_pulls[t] - best)
        weight = math.exp(log_pulls[t])
        total += weight
        shortfall += weight * (gamma[winner] - gamma[t])
    shortfall /= total  # gamma_winner - m
    offset = _log_slope(gamma[winner] - shortfall, loss) - math.log(total)
    for t in range(length):
        pull = shortfall - (gamma[winner] - gamma[t])  # gamma_t - m
        signs[t] = math.copysign(1.0, pull)
        if pull == 0.0 or _equal(tokens[t], tokens[winner]):
            log_pulls[t] = -math.inf
        else:
            log_pulls[t] += offset + math.log(abs(pull))
    return winner


@njit(cache=True, nogil=True)
def _equal(one: Any, other: Any) -> bool:
    j = 0
    while j < one.size and one[j] == other[j]:
        j += 1
    return bool(j == one.size)


@njit(cache=True, nogil=True)
def _log_slope(margin: float, loss: int) -> float:
    """Logarithm of |l'(m)|."""
    if loss == 0:
        return -max(margin, 0.0) - math.log1p(math.exp(-abs(margin)))
    return -margin if loss == 1 else 0.0


@njit(cache=True, nogil=True)
def _norm(values: Any, peak: float, q: float) -> Any:
    """l_q norm of all entries, `peak` being the largest magnitude."""
    if peak == 0.0:
        return 0.0
    total = 0.0
    for value in values.flat:
        ratio = abs(value) / peak
        total += ratio * _power(ratio, q - 1.0)
    return peak * total ** (1.0 / q)


@njit(cache=True, nogil=True)
def _peak(values: Any) -> float:
    largest = 0.0
    for value in values.flat:
        largest = max(largest, abs(value))
    return largest


@njit(cache=True, nogil=True)
def _power(base: float, exponent: float) -> float:
    # pow would take half of the time of a step; p = 2 and p = 3 do without
    if exponent == 1.0:
        return base
    return math.sqrt(base) if exponent == 0.5 else base**exponent
