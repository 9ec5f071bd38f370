"""How well any amount of data could do: the best linear score, the best attention, and the Bayes floor.

With the signal known, linear scores need strength * R of order sqrt(L); attention along the signal needs a strength of
order log L, and no more than sqrt(2 log L) at its best temperature (Barnfield, Cui, Lu, arXiv 2509.25153, section 3).

Attention and the likelihood ratio are sampled over all tokens but one, x, which is integrated out. Both raise an alarm
for x above some h, so a sequence is missed with the chance that a signal token lies below h. A false alarm is the work
of the highest token as a rule, so the chance that x is the highest and above h, times L, keeps its accuracy for rare
alarms; for frequent ones the plain chance that x lies above h varies less, and is taken where it does.

    L, R      tokens and signal tokens of a sequence      tau       inverse temperature of the softmax
    x         the last token, along the signal            h         the value of x above which there is an alarm
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, gammaln, log_ndtr, ndtr

from whichtoken.checks import check_range
from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.feature_law import highest_token, normal_cdf
from whichtoken.theory.sparse_tokens.token_noise import Tokens, drawn_length, token_chunks

Array = NDArray[np.float64]
MAX_POINTS = 1 << 14
FLOAT_BUDGET = 1 << 22  # token noise drawn per class, which limits the points for long sequences
SEARCH_POINTS = 1 << 11  # for the choice of temperature and threshold, and of the grid's threshold
GRID_POINTS = 1 << 9
THRESHOLDS = 41
UNSEEN = 1e-4  # errors below which draws of several signal tokens are not trusted
RARE = 0.05  # false alarms below which they are counted by their highest token
TEMPERATURES = np.geomspace(0.25, 4.0, 13)
TILT_STEPS = 200
NEGLIGIBLE = 36.0  # exponent of what is left out
WINDOW = 12.0  # standard deviations, and ...
SPARE = 24  # ... as many successes more, over which two numbers of successes must not be confused


@dataclass(frozen=True)
class SampledErrorRate(Shown):
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
class OracleErrorRate(SampledErrorRate):
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
    """Least error of a linear score, pooled or vectorized: two unit Gaussians at distance strength * R / sqrt(L).

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


def attention_oracle(
    *,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    inverse_temperature: float | None = None,
    points: int | None = None,
) -> OracleErrorRate:
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
    OracleErrorRate
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
    found = _sampled_rate(task, *attention_mistakes(length, strength, tau, threshold, *both))
    if inverse_temperature is None and pooling.error < found.error:
        return pooling
    if found.error > task.trivial_error:  # a threshold out of reach is a threshold too
        return OracleErrorRate(task.trivial_error, 0.0, tau, math.copysign(math.inf, 0.5 - prevalence))
    return OracleErrorRate(max(found.error, _known_positions_error(task)), found.standard_error, tau, threshold)


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
) -> SampledErrorRate:
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
    SampledErrorRate
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
        return SampledErrorRate(task.trivial_error, 0.0)
    order = signal_tokens
    level = math.log((1 - prevalence) / prevalence) + _log_placements(task) + order * strength**2 / 2
    parts = []
    for draws in token_chunks(points or _default_points(length, order), length - 1, order - 1, seed=0):
        counts = _join_counts(draws.signal, draws.rest)
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
    found = _sampled_rate(task, missed, alarmed, by_highest, doubt)
    least, most = _known_positions_error(task), min(_scan_error(task), _best_pooling(task).error)
    # draws of several signal tokens do not see the rare mistakes of a strong signal: there the bounds say more
    unseen = (most - least) / 2 if order > 1 and found.error < UNSEEN else 0.0
    return SampledErrorRate(min(max(found.error, least), most), max(found.standard_error, unseen))


def _best_pooling(task: Task) -> OracleErrorRate:
    """The linear oracle as attention of temperature zero, with the threshold for the mean token."""
    error, threshold = _two_gaussians(task.separation, task.prevalence)
    return OracleErrorRate(error, 0.0, 0.0, threshold / math.sqrt(task.length))


def _two_gaussians(delta: float, prevalence: float) -> tuple[float, float]:
    """Least error, and threshold, for a positive class of N(delta, 1) and a negative one of N(0, 1)."""
    log_odds = math.log1p(-prevalence) - math.log(prevalence)
    trivial = min(prevalence, 1 - prevalence)
    if delta == 0:
        return trivial, math.copysign(math.inf, log_odds)
    threshold = delta / 2 + log_odds / delta
    error = float(prevalence * ndtr(threshold - delta) + (1 - prevalence) * ndtr(-threshold))
    return min(error, trivial), threshold


def _known_positions_error(task: Task) -> float:
    """Error of the best classifier that knows the positions too, a lower bound of the Bayes floor."""
    return _two_gaussians(task.strength * math.sqrt(task.signal_tokens), task.prevalence)[0]


def _scan_error(task: Task) -> float:
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


def _sampled_rate(
    task: Task, missed: Array, alarmed: Array, by_highest: Array, doubt: Array | None = None
) -> SampledErrorRate:
    """Error and standard error from the chances of a miss and, in both ways, of a false alarm per draw.

    `doubt`, if given, is one more quantity whose mean is the error.
    """
    rare, frequent = (task.prevalence * missed + (1 - task.prevalence) * alarm for alarm in (by_highest, alarmed))
    others = [] if by_highest.mean() < RARE else [frequent] if doubt is None else [frequent, doubt]
    # the deviation of rare mistakes that no draw has seen says nothing, so it decides among frequent ones only
    best = min([rare, *others], key=lambda error: float(error.std()))
    return SampledErrorRate(float(best.mean()), float(best.std()) / math.sqrt(len(best)))


def _join_counts(signal: Tokens, rest: Tokens) -> Array:
    rows = max(len(signal.counts), len(rest.counts))
    return np.hstack([np.broadcast_to(group.counts, (rows, group.counts.shape[1])) for group in (signal, rest)])


def _softmax_sums(task: Task, grid: Array, points: int, seed: int) -> list[tuple[Array, Array]]:
    """Per temperature, of both classes: peak and sums of w and w x over all tokens x but one, each of shape (3, points)."""
    found: list[list[Array]] = [[], []]
    for draws in token_chunks(points, task.length - 1, task.signal_tokens - 1, seed):
        counts = _join_counts(draws.signal, draws.rest)
        for column, shift in zip(found, (task.strength, 0.0), strict=True):
            column.append(weighted_sums(np.hstack([draws.signal.values + shift, draws.rest.values]), counts, grid))
    positive, negative = (np.concatenate(column, axis=2) for column in found)
    return list(zip(positive, negative, strict=True))


def _best_threshold(task: Task, tau: float, positive: Array, negative: Array) -> tuple[float, float]:
    def error(threshold: float, points: int = SEARCH_POINTS) -> float:
        sums = positive[:, :points], negative[:, :points]
        return _sampled_rate(task, *attention_mistakes(task.length, task.strength, tau, threshold, *sums)).error

    highest = math.sqrt(2 * math.log(task.length))
    grid = np.linspace(-2.0, max(task.strength, highest) + 4.0, THRESHOLDS)
    best = int(np.argmin([error(t, GRID_POINTS) for t in grid]))
    bracket = (grid[max(best - 1, 0)], grid[min(best + 1, THRESHOLDS - 1)])
    found = minimize_scalar(error, bounds=bracket, method="bounded", options={"xatol": 1e-3})
    return float(found.fun), float(found.x)


@njit(cache=True, nogil=True)
def weighted_sums(tokens, counts, grid):  # type: ignore[no-untyped-def]
    """Peak, sum of w and sum of w x, w = exp(tau (x - peak)): (temperatures, 3, points)."""
    points = len(tokens)
    out = np.zeros((len(grid), 3, points))
    for i in range(points):
        count = counts[i % len(counts)]
        peak = highest_token(tokens[i], count)
        for k in range(len(grid)):
            out[k, 0, i] = peak
            for t in range(count.size):
                if count[t] > 0:
                    weight = count[t] * math.exp(grid[k] * (tokens[i, t] - peak))
                    out[k, 1, i] += weight
                    out[k, 2, i] += weight * tokens[i, t]
    return out


@njit(cache=True, nogil=True)
def attention_mistakes(length, strength, tau, threshold, positive, negative):  # type: ignore[no-untyped-def]
    """Chance of a miss and, in both ways, of a false alarm per draw of the other tokens: (3, points)."""
    points = positive.shape[1]
    out = np.empty((3, points))
    for i in range(points):
        low, high = _quiet_range(tau, threshold, positive[0, i], positive[1, i], positive[2, i])
        out[0, i] = max(normal_cdf(high - strength) - normal_cdf(low - strength), 0.0)
        low, high = _quiet_range(tau, threshold, negative[0, i], negative[1, i], negative[2, i])
        out[1, i] = min(normal_cdf(-high) + normal_cdf(low), 1.0)
        out[2, i] = length * normal_cdf(-max(high, negative[0, i]))
    return out


@njit(cache=True, nogil=True)
def _quiet_range(tau: float, threshold: float, peak: float, zeroth: float, first: float) -> tuple[float, float]:
    """Between which values of the last token x the score (s1 + x e^(tau x)) / (s0 + e^(tau x)) is below the threshold.

    With u = tau (x - threshold) these are the roots of u e^u = c, where c is negative if the score of the others is above
    the threshold; then a token of medium height pulls it down, and for c < -1/e none pulls it far enough.
    """
    gap = threshold * zeroth - first
    if gap == 0.0:
        return -math.inf, threshold
    log_c = math.log(tau * abs(gap)) + tau * (peak - threshold)
    if gap > 0:
        return -math.inf, threshold + _positive_root(log_c) / tau
    if log_c > -1:
        return -math.inf, -math.inf
    return threshold - _negative_root(log_c, True) / tau, threshold - _negative_root(log_c, False) / tau


@njit(cache=True, nogil=True)
def _positive_root(log_c: float) -> float:
    """Solve u + log u = log_c by Newton's method."""
    if log_c < -30:
        return math.exp(log_c)
    u = log_c - math.log(log_c) if log_c > 3 else math.log1p(math.exp(log_c))
    for _ in range(20):
        new = u * (1 + log_c - math.log(u)) / (1 + u)
        if abs(new - u) <= 1e-12 * u:
            return new
        u = new
    return u


@njit(cache=True, nogil=True)
def _negative_root(log_c: float, outer: bool) -> float:
    """Solve log v - v = log_c, for log_c <= -1, by Newton's method: the root above 1 or the one below."""
    depth = math.sqrt(2 * max(-1 - log_c, 0.0))  # from the double root v = 1
    if outer:
        v = 1 + depth + depth * depth / 3 if depth < 1 else -log_c + math.log(-log_c)
    else:
        v = 1 - depth + depth * depth / 3 if depth < 0.7 else math.exp(log_c + math.exp(log_c))
    for _ in range(20):
        if abs(1 - v) < 1e-8 or v < 1e-300:
            break
        new = v * (1 - (math.log(v) - v - log_c) / (1 - v))
        if abs(new - v) <= 1e-12 * v:
            return new
        v = new if new > 0 else v / 2
    return v


@njit(cache=True, nogil=True)
def log_symmetric(logs, counts, order):  # type: ignore[no-untyped-def]
    """Logarithms of the elementary symmetric polynomials of orders `order - 1` and `order` of exp(logs), (points, 2).

    `logs` has shape (points, k); each entry stands for as many equal terms as `counts` (points, k) or (1, k) says. With
    p = expit(logs - tilt), the polynomial is the chance that independent trials of probabilities p succeed `order` times,
    over exp(-order tilt) prod (1 - p). A tilt that makes this the expected number keeps the chance far from zero; it
    follows from the characteristic function, which has decayed after some two dozen nodes however many trials there are.
    """
    points = logs.shape[0]
    out = np.empty((points, 2))
    for i in range(points):
        count = counts[i % len(counts)]
        if order == 1:
            out[i, 0], out[i, 1] = 0.0, _log_sum(logs[i], count)
        else:
            out[i, 0], out[i, 1] = _two_orders(logs[i], count, order)
    return out


@njit(cache=True, nogil=True)
def _log_sum(logs, counts):  # type: ignore[no-untyped-def]
    peak = highest_token(logs, counts)
    total = 0.0
    for t in range(logs.size):
        if counts[t] > 0:
            total += counts[t] * math.exp(logs[t] - peak)
    return peak + math.log(total)


@njit(cache=True, nogil=True)
def _two_orders(logs, counts, order):  # type: ignore[no-untyped-def]
    if order == counts.sum():  # the product of all terms, and of all but one: no tilt makes that the expected number
        everything = (np.where(counts > 0, logs, 0.0) * counts).sum()
        return everything + _log_sum(-logs, counts), everything
    tilt = _tilt(logs, counts, order - 0.5)
    p, q = np.empty(logs.size), np.empty(logs.size)
    log_rest = variance = 0.0
    for t in range(logs.size):
        x = logs[t] - tilt
        p[t], q[t] = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))
        log_rest += counts[t] * (max(x, 0.0) + math.log1p(math.exp(-abs(x))))  # -log q
        variance += counts[t] * p[t] * q[t]
    nodes = int(WINDOW * math.sqrt(variance)) + SPARE
    lower = upper = 1.0
    for k in range(1, nodes // 2 + 1):
        angle = 2 * math.pi * k / nodes
        if variance * (1 - math.cos(angle)) > NEGLIGIBLE:
            break
        log_size, phase = _characteristic(p, q, counts, math.cos(angle), math.sin(angle))
        twice = (1.0 if 2 * k == nodes else 2.0) * math.exp(log_size)
        lower += twice * math.cos(phase - (order - 1) * angle)
        upper += twice * math.cos(phase - order * angle)
    return (
        log_rest + (order - 1) * tilt + math.log(max(lower / nodes, 1e-300)),
        log_rest + order * tilt + math.log(max(upper / nodes, 1e-300)),
    )


@njit(cache=True, nogil=True)
def _characteristic(p, q, counts, cosine, sine):  # type: ignore[no-untyped-def]
    """Logarithm of the size, and phase, of the product of q + p exp(i angle) over all trials."""
    log_size = phase = 0.0
    real, imaginary = 1.0, 0.0
    for t in range(p.size):
        n, a, b = counts[t], q[t] + p[t] * cosine, p[t] * sine
        if n == 1:
            real, imaginary = real * a - imaginary * b, real * b + imaginary * a
            if abs(real) + abs(imaginary) < 1e-100:
                real, imaginary, log_size = real * 1e100, imaginary * 1e100, log_size - 100 * math.log(10.0)
        elif n > 0:
            log_size += 0.5 * n * math.log1p(-2 * p[t] * q[t] * (1 - cosine))
            phase += n * math.atan2(b, a)
    return log_size + math.log(max(math.hypot(real, imaginary), 1e-300)), phase + math.atan2(imaginary, real)


@njit(cache=True, nogil=True)
def _tilt(logs, counts, expected):  # type: ignore[no-untyped-def]
    """Shift at which the expected number of successes is this one, to a tenth of a token: Newton, or halving."""
    odds = math.log(expected / (counts.sum() - expected))
    low, high = -highest_token(-logs, counts) - odds, highest_token(logs, counts) - odds
    tilt = (low + high) / 2
    for _ in range(TILT_STEPS):
        mean = variance = 0.0
        for t in range(logs.size):
            if counts[t] > 0:
                p = 1 / (1 + math.exp(tilt - logs[t]))
                mean += counts[t] * p
                variance += counts[t] * p * (1 - p)
        if abs(mean - expected) < 0.1:
            break
        if mean > expected:
            low = tilt
        else:
            high = tilt
        tilt += (mean - expected) / max(variance, 1e-300)
        if not low < tilt < high:
            tilt = (low + high) / 2
    return tilt
