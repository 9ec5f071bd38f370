"""How well any amount of data could do: the best linear score, the best attention, and the Bayes floor.

With the signal known, linear scores need strength * R of order sqrt(L); attention along the signal needs a strength of
order log L, and no more than sqrt(2 log L) at its best temperature (Barnfield, Cui, Lu, arXiv 2509.25153, section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, gammaln, ndtr

from whichtoken.checks import check_range
from whichtoken.data.sparse_task import Task
from whichtoken.theory.sparse_tokens.feature_law import normal_chunks

Array = NDArray[np.float64]

MAX_POINTS = 1 << 14
FLOAT_BUDGET = 1 << 22  # token noise drawn per class, which limits the points for long sequences
STEP_BUDGET = 1 << 28  # of the recursion over tokens and signal tokens, half a second
TILT_STEPS = 200
TEMPERATURES = np.geomspace(0.25, 4.0, 13)


@dataclass(frozen=True)
class OracleError:
    """Error of a classifier that knows the signal."""

    error: float
    standard_error: float  # of the integration over token noise
    inverse_temperature: float
    threshold: float


def linear_oracle(*, length: int, signal_tokens: int, strength: float, prevalence: float) -> float:
    """Least error of a linear score, pooled or vectorised: two unit Gaussians at distance strength * R / sqrt(L)."""
    task = Task(length, signal_tokens, strength, prevalence)
    delta = task.separation
    if delta == 0:
        return min(prevalence, 1 - prevalence)
    threshold = delta / 2 + math.log((1 - prevalence) / prevalence) / delta
    return float(prevalence * ndtr(threshold - delta) + (1 - prevalence) * ndtr(-threshold))


def attention_oracle(
    *,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    inverse_temperature: float | None = None,
    points: int | None = None,
) -> OracleError:
    """Error of attention with query and readout along the signal, at its best threshold.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence
        The task.
    inverse_temperature : float, optional
        The best of a grid up to 4 and up to twice the strength by default. Temperature and threshold are chosen on
        other draws than those that give the error.
    points : int, optional
        Draws per class, a power of two; by default 16384, fewer for sequences longer than 256.
    """
    task = Task(length, signal_tokens, strength, prevalence)
    if inverse_temperature is not None:
        check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
    count = points or _default_points(length)
    grid = TEMPERATURES * max(1.0, strength / 2) if inverse_temperature is None else np.array([inverse_temperature])
    fits = [_best_threshold(task, *scores) for scores in _oracle_scores(task, grid, count, seed=0)]
    best = int(np.argmin([error for error, _ in fits]))
    threshold = fits[best][1]
    ((positive, negative),) = _oracle_scores(task, grid[best : best + 1], count, seed=1)
    missed, alarmed = _mistakes(task, positive, negative, threshold)
    error = prevalence * missed.mean() + (1 - prevalence) * alarmed.mean()
    spread = math.hypot(prevalence * float(missed.std()), (1 - prevalence) * float(alarmed.std())) / math.sqrt(count)
    return OracleError(float(error), spread, float(grid[best]), threshold)


def bayes_floor(
    *, length: int, signal_tokens: int, strength: float, prevalence: float, points: int | None = None
) -> float:
    """Error of the best classifier of all, which knows everything but the positions.

    The likelihood ratio is an elementary symmetric polynomial: the mean over placements of
    exp(strength * sum of the R tokens there - R strength^2 / 2). The floor is the mean posterior of the less likely class.
    """
    task = Task(length, signal_tokens, strength, prevalence)
    prior = math.log(prevalence / (1 - prevalence))
    placements = gammaln(length + 1) - gammaln(signal_tokens + 1) - gammaln(length - signal_tokens + 1)
    total = {1: 0.0, -1: 0.0}
    count = points or _default_points(length, signal_tokens)
    for normals in normal_chunks(count, length, seed=0):
        for label in (1, -1):
            tokens = normals.copy()
            if label == 1:
                tokens[:, :signal_tokens] += strength
            ratio = _log_symmetric(strength * tokens, signal_tokens) - placements - signal_tokens * strength**2 / 2
            total[label] += float(expit(-np.abs(ratio + prior)).sum())
    return (task.prevalence * total[1] + (1 - task.prevalence) * total[-1]) / count


def _default_points(length: int, signal_tokens: int = 1) -> int:
    most = min(FLOAT_BUDGET // length, STEP_BUDGET // (length * signal_tokens))
    return min(MAX_POINTS, 1 << max(5, most.bit_length() - 1))


def _oracle_scores(task: Task, grid: Array, points: int, seed: int) -> list[tuple[Array, Array]]:
    """Positive and negative scores without the mean token's noise, one pair of (points,) per temperature."""
    scores = np.empty((2, grid.size, points))
    done = 0
    for noise in normal_chunks(points, task.length, seed):
        tokens = noise - noise.mean(axis=1, keepdims=True)
        for row in (1, 0):  # negatives first: the signal is then added in place
            if row == 0:
                tokens[:, : task.signal_tokens] += task.strength
            peak = tokens.max(axis=1, keepdims=True)
            for column, tau in enumerate(grid):
                weight = np.exp(tau * (tokens - peak))
                mean = np.einsum("ij,ij->i", weight, tokens) / weight.sum(axis=1)
                scores[row, column, done : done + len(tokens)] = mean
        done += len(tokens)
    return list(zip(scores[0], scores[1], strict=True))


def _mistakes(task: Task, positive: Array, negative: Array, threshold: float) -> tuple[Array, Array]:
    """Chance of a miss and of a false alarm per draw; the mean token's noise, of variance 1/L, is integrated out."""
    root = math.sqrt(task.length)
    return ndtr(root * (threshold - positive)), ndtr(root * (negative - threshold))


def _best_threshold(task: Task, positive: Array, negative: Array) -> tuple[float, float]:
    def error(threshold: float) -> float:
        missed, alarmed = _mistakes(task, positive, negative, threshold)
        return float(task.prevalence * missed.mean() + (1 - task.prevalence) * alarmed.mean())

    grid = np.quantile(np.concatenate([positive, negative]), np.linspace(0, 1, 65))
    best = int(np.argmin([error(t) for t in grid]))
    bracket = (grid[max(best - 1, 0)] - 1e-9, grid[min(best + 1, 64)] + 1e-9)
    found = minimize_scalar(error, bounds=bracket, method="bounded")
    return float(found.fun), float(found.x)


@njit(cache=True, nogil=True)
def _log_symmetric(logs, order):  # type: ignore[no-untyped-def]
    """Logarithm of the elementary symmetric polynomial of exp(logs), for every row of (points, length).

    With p = expit(logs - tilt) it is the chance that independent trials of probabilities p succeed `order` times, over
    exp(-order tilt) prod (1 - p). A tilt that makes this the expected number keeps the chance far from underflow.
    """
    points, length = logs.shape
    result = np.empty(points)
    chance = np.empty(order + 1)
    for i in range(points):
        tilt = _tilt(logs[i], order)
        chance[:] = 0.0
        chance[0] = 1.0
        total = order * tilt
        for t in range(length):
            x = logs[i, t] - tilt
            p = 1 / (1 + math.exp(-x))
            q = 1 / (1 + math.exp(x))
            total += max(x, 0.0) + math.log1p(math.exp(-abs(x)))  # -log q
            for r in range(min(order, t + 1), 0, -1):
                chance[r] = chance[r] * q + chance[r - 1] * p
            chance[0] *= q
        result[i] = total + math.log(chance[order])
    return result


@njit(cache=True, nogil=True)
def _tilt(logs, order):  # type: ignore[no-untyped-def]
    """Shift at which the expected number of successes is `order`, to a tenth of a token, by halving."""
    low, high = logs.min() - math.log(logs.size), logs.max() + math.log(logs.size)
    tilt = (low + high) / 2
    for _ in range(TILT_STEPS):
        tilt = (low + high) / 2
        expected = 0.0
        for x in logs:
            expected += 1 / (1 + math.exp(tilt - x))
        if abs(expected - order) < 0.1:
            break
        if expected > order:
            low = tilt
        else:
            high = tilt
    return tilt
