"""How well any amount of data could do: the best linear score, the best attention, and the Bayes floor.

With the signal known, linear scores need strength * R of order sqrt(L); attention along the signal needs a strength of
order log L, and no more than sqrt(2 log L) at its best temperature (Barnfield, Cui, Lu, arXiv 2509.25153, section 3).

Attention and the likelihood ratio are sampled over all tokens but one, x, which is integrated out. Both raise an alarm
for x above some h, so a sequence is missed with the chance that a signal token lies below h. A false alarm is the work
of the highest token as a rule, so the chance that x is the highest and above h, times L, keeps its accuracy for rare
alarms; for frequent ones the plain chance that x lies above h varies less, and is taken where it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, gammaln, log_ndtr, ndtr

from whichtoken.checks import check_range
from whichtoken.data.sparse_task import Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.likelihood import log_symmetric
from whichtoken.theory.sparse_tokens.oracle_kernels import attention_mistakes, weighted_sums
from whichtoken.theory.sparse_tokens.token_noise import Tokens, drawn_length, token_chunks

Array = NDArray[np.float64]

MAX_POINTS = 1 << 14
FLOAT_BUDGET = 1 << 22  # token noise drawn per class, which limits the points for long sequences
SEARCH_POINTS = 1 << 11  # for the choice of temperature and threshold
THRESHOLDS = 41
UNSEEN = 1e-4  # errors below which draws of several signal tokens are not trusted
RARE = 0.05  # false alarms below which they are counted by their highest token
TEMPERATURES = np.geomspace(0.25, 4.0, 13)


@dataclass(frozen=True)
class SampledError(Shown):
    """Error of a classifier that knows the signal: the result of `bayes_oracle`.

    Attributes
    ----------
    error : float
        Probability of a wrong label.
    standard_error : float
        Standard error of the integration over token noise, or half the gap of the bounds where these say more.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import bayes_oracle
    >>> floor = bayes_oracle(length=10, signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> 0 < floor.error < 0.5, floor.standard_error < 0.01
    (True, True)
    """

    error: float
    standard_error: float


@dataclass(frozen=True)
class OracleError(SampledError):
    """Error of attention that knows the signal, and the temperature and threshold used: the result of `attention_oracle`.

    Attributes
    ----------
    error : float
        Probability of a wrong label.
    standard_error : float
        Standard error of the integration over token noise.
    inverse_temperature : float
        Inverse temperature of the softmax.
    threshold : float
        Score above which a sequence counts as positive.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import attention_oracle
    >>> best = attention_oracle(length=10, signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> best.inverse_temperature > 0, best.error < 0.2
    (True, True)
    """

    inverse_temperature: float
    threshold: float


def linear_oracle(*, length: int, signal_tokens: int, strength: float, prevalence: float) -> float:
    """Least error of a linear score, pooled or vectorised: two unit Gaussians at distance strength * R / sqrt(L).

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.

    Returns
    -------
    float
        Probability of a wrong label.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import linear_oracle
    >>> round(linear_oracle(length=4, signal_tokens=1, strength=2.0, prevalence=0.5), 4)  # classes one unit apart
    0.3085
    """
    return _best_pooling(Task(length, signal_tokens, strength, prevalence)).error


def _best_pooling(task: Task) -> OracleError:
    """The linear oracle as attention of temperature zero, with the threshold for the mean token."""
    error, threshold = _two_gaussians(task.separation, task.prevalence)
    return OracleError(error, 0.0, 0.0, threshold / math.sqrt(task.length))


def _two_gaussians(delta: float, prevalence: float) -> tuple[float, float]:
    """Least error, and threshold, for a positive class of N(delta, 1) and a negative one of N(0, 1)."""
    log_odds = math.log1p(-prevalence) - math.log(prevalence)
    trivial = min(prevalence, 1 - prevalence)
    if delta == 0:
        return trivial, math.copysign(math.inf, log_odds)
    threshold = delta / 2 + log_odds / delta
    error = float(prevalence * ndtr(threshold - delta) + (1 - prevalence) * ndtr(-threshold))
    return min(error, trivial), threshold


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
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    inverse_temperature : float, optional
        By default the best of zero, which is pooling, and of a grid up to 4 and up to twice the strength. Temperature
        and threshold are chosen on other draws than those that give the error.
    points : int, optional
        Draws, a power of two; by default 16384, fewer for sequences longer than 256.

    Returns
    -------
    OracleError
        The error, with the temperature and threshold that were used.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import attention_oracle, linear_oracle
    >>> task = dict(length=10, signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> attention_oracle(**task).error < linear_oracle(**task)
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    count = points or _default_points(length)
    grid = TEMPERATURES * max(1.0, strength / 2)
    if inverse_temperature is not None:
        check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
        grid = np.array([inverse_temperature])
    pooling = _best_pooling(task)
    if inverse_temperature == 0 or strength == 0:
        return pooling
    sums = _softmax_sums(task, grid, min(count, SEARCH_POINTS), seed=0)
    fits = [_best_threshold(task, tau, *both) for tau, both in zip(grid, sums, strict=True)]
    best = int(np.argmin([error for error, _ in fits]))
    tau, threshold = float(grid[best]), fits[best][1]
    (both,) = _softmax_sums(task, grid[best : best + 1], count, seed=1)
    found = _sampled(task, *attention_mistakes(length, strength, tau, threshold, *both))
    if inverse_temperature is None and pooling.error < found.error:
        return pooling
    if found.error > task.trivial_error:  # a threshold out of reach is a threshold too
        return OracleError(task.trivial_error, 0.0, tau, math.copysign(math.inf, 0.5 - prevalence))
    return OracleError(max(found.error, _known_positions(task)), found.standard_error, tau, threshold)


def bayes_floor(
    *, length: int, signal_tokens: int, strength: float, prevalence: float, points: int | None = None
) -> float:
    """Error of the best possible classifier; `bayes_oracle` says how well it is known.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    points : int, optional
        Draws, a power of two; by default 16384, fewer for long sequences.

    Returns
    -------
    float
        Probability of a wrong label that no classifier can beat.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import bayes_floor
    >>> weak, strong = (bayes_floor(length=10, signal_tokens=1, strength=s, prevalence=0.5) for s in (2.0, 5.0))
    >>> strong < weak < 0.5
    True
    """
    return bayes_oracle(
        length=length, signal_tokens=signal_tokens, strength=strength, prevalence=prevalence, points=points
    ).error


def bayes_oracle(
    *, length: int, signal_tokens: int, strength: float, prevalence: float, points: int | None = None
) -> SampledError:
    """Error of the best possible classifier, which knows everything but the positions, and its standard error.

    The likelihood ratio is an elementary symmetric polynomial: the mean over placements of
    exp(strength * sum of the R tokens there - R strength^2 / 2).

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    points : int, optional
        Draws, a power of two; by default 16384, fewer for long sequences.

    Returns
    -------
    SampledError
        The error and its standard error.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import attention_oracle, bayes_oracle
    >>> task = dict(length=10, signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> floor = bayes_oracle(**task)
    >>> floor.error <= attention_oracle(**task).error + 3 * floor.standard_error
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    if strength == 0:
        return SampledError(task.trivial_error, 0.0)
    order = signal_tokens
    level = math.log((1 - prevalence) / prevalence) + _log_placements(task) + order * strength**2 / 2
    parts = []
    for draws in token_chunks(points or _default_points(length, order), length - 1, order - 1, seed=0):
        counts = _joined_counts(draws.signal, draws.rest)
        tokens = np.hstack([draws.signal.values, draws.rest.values])
        thresholds, doubts = [], []
        for shift in (strength, 0.0):
            shifted = tokens + shift * (np.arange(tokens.shape[1]) < draws.signal.values.shape[1])
            lower, upper = log_symmetric(strength * shifted, counts, order).T
            # alarm if upper + exp(strength x) lower, as polynomials, exceeds the level
            reached = np.exp(np.minimum(upper - level, 0.0))
            with np.errstate(divide="ignore"):
                thresholds.append((level + np.log1p(-reached) - lower) / strength)
            log_odds = np.logaddexp(upper, lower + strength * (draws.gauss + shift)) - level
            doubts.append(expit(-np.abs(log_odds)))
        highest = np.where(counts > 0, tokens, -np.inf).max(axis=1)
        alarms = ndtr(-thresholds[1]), length * ndtr(-np.maximum(thresholds[1], highest))
        parts.append([ndtr(thresholds[0] - strength), *alarms, *doubts])
    missed, alarmed, by_highest, *doubts = (np.concatenate(column) for column in zip(*parts, strict=True))
    # the mean posterior of the less likely class, where mistakes are too frequent for its tail to matter
    doubt = prevalence * doubts[0] + (1 - prevalence) * doubts[1]
    found = _sampled(task, missed, alarmed, by_highest, doubt)
    least, most = _known_positions(task), min(_scan(task), _best_pooling(task).error)
    # draws of several signal tokens do not see the rare mistakes of a strong signal: there the bounds say more
    unseen = (most - least) / 2 if order > 1 and found.error < UNSEEN else 0.0
    return SampledError(min(max(found.error, least), most), max(found.standard_error, unseen))


def _known_positions(task: Task) -> float:
    """Error of the best classifier that knows the positions too, a lower bound of the Bayes floor."""
    return _two_gaussians(task.strength * math.sqrt(task.signal_tokens), task.prevalence)[0]


def _scan(task: Task) -> float:
    """An upper bound: alarm if any R tokens sum to much, with the threshold that would suit one placement per negative."""
    delta = task.strength * math.sqrt(task.signal_tokens)
    log_count = _log_placements(task)
    # raising the odds of a false alarm by the number of placements makes the union bound exact
    odds = math.log1p(-task.prevalence) - math.log(task.prevalence) + log_count
    threshold = delta / 2 + odds / delta
    alarms = math.exp(min(0.0, log_count + float(log_ndtr(-threshold))))
    return min(task.trivial_error, float(task.prevalence * ndtr(threshold - delta) + (1 - task.prevalence) * alarms))


def _log_placements(task: Task) -> float:
    """Logarithm of the number of ways to place the signal."""
    length, order = task.length, task.signal_tokens
    return float(gammaln(length + 1) - gammaln(order + 1) - gammaln(length - order + 1))


def _default_points(length: int, signal_tokens: int = 1) -> int:
    effort = drawn_length(length) * (4 if signal_tokens > 1 and length > 256 else 1)
    return min(MAX_POINTS, 1 << max(10, (FLOAT_BUDGET // effort).bit_length() - 1))


def _sampled(task: Task, missed: Array, alarmed: Array, by_highest: Array, doubt: Array | None = None) -> SampledError:
    """Error and standard error from the chances of a miss and, in both ways, of a false alarm per draw.

    `doubt`, if given, is one more quantity whose mean is the error.
    """
    rare, frequent = (task.prevalence * missed + (1 - task.prevalence) * alarm for alarm in (by_highest, alarmed))
    others = [] if by_highest.mean() < RARE else [frequent] if doubt is None else [frequent, doubt]
    # the deviation of rare mistakes that no draw has seen says nothing, so it decides among frequent ones only
    best = min([rare, *others], key=lambda error: float(error.std()))
    return SampledError(float(best.mean()), float(best.std()) / math.sqrt(len(best)))


def _joined_counts(signal: Tokens, rest: Tokens) -> Array:
    rows = max(len(signal.counts), len(rest.counts))
    return np.hstack([np.broadcast_to(group.counts, (rows, group.counts.shape[1])) for group in (signal, rest)])


def _softmax_sums(task: Task, grid: Array, points: int, seed: int) -> list[tuple[Array, Array]]:
    """Per temperature, of both classes: peak and sums of w and w x over all tokens x but one, each of shape (3, points)."""
    found: list[list[Array]] = [[], []]
    for draws in token_chunks(points, task.length - 1, task.signal_tokens - 1, seed):
        counts = _joined_counts(draws.signal, draws.rest)
        for column, shift in zip(found, (task.strength, 0.0), strict=True):
            column.append(weighted_sums(np.hstack([draws.signal.values + shift, draws.rest.values]), counts, grid))
    positive, negative = (np.concatenate(column, axis=2) for column in found)
    return list(zip(positive, negative, strict=True))


def _best_threshold(task: Task, tau: float, positive: Array, negative: Array) -> tuple[float, float]:
    def error(threshold: float) -> float:
        mistakes = attention_mistakes(task.length, task.strength, tau, threshold, positive, negative)
        return _sampled(task, *mistakes).error

    highest = math.sqrt(2 * math.log(task.length))
    grid = np.linspace(-2.0, max(task.strength, highest) + 4.0, THRESHOLDS)
    best = int(np.argmin([error(t) for t in grid]))
    bracket = (grid[max(best - 1, 0)], grid[min(best + 1, THRESHOLDS - 1)])
    found = minimize_scalar(error, bounds=bracket, method="bounded", options={"xatol": 1e-3})
    return float(found.fun), float(found.x)
