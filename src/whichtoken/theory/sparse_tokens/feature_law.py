"""The low-dimensional law of what a linear readout sees: two coordinates with a mean, isotropic noise in the rest.

Symbols (Barnfield, Cui, Lu, arXiv 2509.25153)
    g      standard Gaussian, noise of the L tokens along the query; g_bar its mean over the tokens
    s      softmax(tau (g + s_q theta v)), tau = inverse temperature times norm of the query
    a      attention on the signal tokens, sum of s over them (0 for the negative class)
    c      <g, s>, noise that attention picks up along the query
    f1     c + theta s_q a, feature along the query
    f2     theta sqrt(1 - s_q^2) a, mean feature along the signal, orthogonal to the query
    rho    |s|^2, variance of the feature in every direction but the query's

The softmax does not see g_bar, so c = g_bar + <g - g_bar, s> with two independent terms: g_bar, of variance 1/L, is
never sampled. A readout w sees it as one more Gaussian, which joins the noise sqrt(rho) |w| G analytically.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtr

from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import Task as Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.token_noise import drawn_length, exponentials, token_chunks

Array = NDArray[np.float64]

MODELS = ("attention", "pooled", "vectorized")
SOBOL_SIZES = (1 << 11, 1 << 13, 1 << 15, 1 << 17)  # points per class, tried in turn until an accuracy is reached
LAX, LAX_SIZE = 1e-2, 1 << 9  # an accuracy for which fewer points may do
SCRAMBLES = 4
TRAPEZOID_SIZES: tuple[int, ...] = (385, 769)
TRAPEZOID_REACH = 8.5  # the Gaussian density there is 1e-16 of its peak
FLOAT_BUDGET = 1 << 23  # token noise per copy


@dataclass(frozen=True)
class FeatureLaw(Shown):
    """Weighted nodes of the law; all arrays have shape (nodes,) and weights sum to one over both classes.

    Attributes
    ----------
    label : array
        -1 or +1.
    weight : array of shape (nodes,)
        Probability of the node.
    query_mean : array
        f1 without g_bar.
    signal_mean : array
        f2.
    spread : array
        rho.
    gauss : array
        Nodes of the Gaussian noise that a readout sees.
    query_variance : float
        Variance of g_bar: 1/L, or 0 where no query direction exists.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import Task, attention_law
    >>> law = attention_law(Task(10, 1, 5.0, 0.3), alignment=0.9, inverse_temperature=2.0)
    >>> round(float(law.weight[law.label > 0].sum()), 6)
    0.3
    >>> law.error(query_overlap=1.0, signal_overlap=0.0, bias=-2.5, norm2=0.0) < 0.3  # better than "negative" for all
    True
    """

    label: Array
    weight: Array
    query_mean: Array
    signal_mean: Array
    spread: Array
    gauss: Array
    query_variance: float

    def score(self, query_overlap: float, signal_overlap: float, bias: float, norm2: float) -> tuple[Array, Array]:
        """Mean and standard deviation of the score at every node, for a readout of squared norm `norm2` off the query."""
        mean = query_overlap * self.query_mean + signal_overlap * self.signal_mean + bias
        return mean, np.sqrt(self.query_variance * query_overlap**2 + norm2 * self.spread)

    def error(self, query_overlap: float, signal_overlap: float, bias: float, norm2: float) -> float:
        """Probability that the sign of a fresh sample's score is wrong."""
        mean, noise = self.score(query_overlap, signal_overlap, bias, norm2)
        return float(self.weight @ ndtr(-self.label * mean / noise))

    def mirror(self) -> FeatureLaw:
        """The law with every Gaussian node of both signs, so that all odd moments of the noise vanish as they should."""
        twice = {name: np.tile(getattr(self, name), 2) for name in ("label", "query_mean", "signal_mean", "spread")}
        weight, gauss = np.tile(self.weight / 2, 2), np.concatenate([self.gauss, -self.gauss])
        return FeatureLaw(**twice, weight=weight, gauss=gauss, query_variance=self.query_variance)

    def merge(self) -> FeatureLaw:
        """The law without its Gaussian nodes: one node per class where these are all that tells nodes apart."""
        firsts = np.unique(self.label, return_index=True)[1]
        inverse = np.searchsorted(self.label[firsts], self.label)
        columns = (self.query_mean, self.signal_mean, self.spread)
        if any((column != column[firsts][inverse]).any() for column in columns):
            return self
        weight, (query, signal, spread) = np.bincount(inverse, self.weight), (column[firsts] for column in columns)
        gauss = np.zeros(len(firsts))
        return FeatureLaw(self.label[firsts], weight.astype(float), query, signal, spread, gauss, self.query_variance)


def refinements(
    task: Task, model: str, alignment: float | None, inverse_temperature: float | None, accuracy: float = 0.0
) -> Iterator[list[FeatureLaw]]:
    """Ever finer discretizations of what a model's readout sees, each as independent copies, for error bars.

    The baselines have one mean direction: pooling sees the signal in a share R/L of the mean token; the vectorized
    readout, by convexity and symmetry over positions, puts equal weights on the signal at all positions.
    """
    check_choice("model", model, MODELS)
    if model == "pooled":
        mean = task.strength * task.signal_tokens / task.length
        return ([two_point_law(task.prevalence, 0.0, mean, 1 / task.length, 0.0, size)] for size in TRAPEZOID_SIZES)
    if model == "vectorized":
        return ([two_point_law(task.prevalence, 0.0, task.separation, 1.0, 0.0, size)] for size in TRAPEZOID_SIZES)
    if alignment is None or inverse_temperature is None:
        raise ValueError("alignment and inverse_temperature are needed for model='attention'")
    copies, sizes = 1, TRAPEZOID_SIZES
    if inverse_temperature != 0:
        # the usual sizes, as far as the budget goes for this length, and two sizes whatever the length
        most = max(1 << 7, 1 << (FLOAT_BUDGET // drawn_length(task.length)).bit_length() - 1)
        tried = (LAX_SIZE, *SOBOL_SIZES) if accuracy >= LAX else SOBOL_SIZES
        usual = tuple(size for size in tried if size <= most)
        copies, sizes = SCRAMBLES, usual if most >= SOBOL_SIZES[1] else (most // 4, most)
    check_range("alignment", alignment, -1.0, 1.0, include_low=True, include_high=True)
    check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
    return (
        [attention_law(task, alignment, inverse_temperature, size, seed) for seed in range(copies)] for size in sizes
    )


def attention_law(
    task: Task, alignment: float, inverse_temperature: float, points: int = 8192, seed: int = 0
) -> FeatureLaw:
    """Law of attention features for a query of given alignment and inverse temperature.

    Parameters
    ----------
    task : Task
        The data.
    alignment : float
        s_q, cosine of query and signal.
    inverse_temperature : float
        tau, inverse temperature times norm of the query.
    points : int, default=8192
        Nodes per class: Sobol points, a power of two; at inverse temperature 0, where attention is the mean and only
        the Gaussian noise needs a rule, trapezoidal nodes.
    seed : int, default=0
        Scramble of the Sobol points.

    Returns
    -------
    FeatureLaw
        Weighted nodes, over which expectations are sums.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import Task, attention_law
    >>> law = attention_law(Task(10, 1, 5.0, 0.5), alignment=1.0, inverse_temperature=2.0)
    >>> positive, negative = law.query_mean[law.label > 0], law.query_mean[law.label < 0]
    >>> bool(positive.mean() > negative.mean())
    True
    """
    if inverse_temperature > 0:
        return _sampled_law(task, float(alignment), float(inverse_temperature), points, seed)
    mean, share = task.strength * task.signal_tokens / task.length, 1 / task.length
    return two_point_law(task.prevalence, mean * alignment, mean * math.sqrt(1 - alignment**2), share, share, points)


def two_point_law(
    prevalence: float, query_mean: float, signal_mean: float, spread: float, query_variance: float, nodes: int
) -> FeatureLaw:
    """Law with fixed means, zero for the negative class, and trapezoidal nodes for the Gaussian noise.

    The trapezoidal rule converges geometrically here, like Gauss-Hermite, but keeps its accuracy for integrands that
    bend within a small part of the noise (small ridge, hinge loss).
    """
    gauss = np.linspace(-TRAPEZOID_REACH, TRAPEZOID_REACH, nodes)
    density = np.exp(-(gauss**2) / 2)
    density /= density.sum()
    positive = np.repeat([1.0, 0.0], nodes)
    weight = np.concatenate([prevalence * density, (1 - prevalence) * density])
    means = (query_mean * positive, signal_mean * positive)
    spreads = np.full(2 * nodes, spread)
    return FeatureLaw(2 * positive - 1, weight, *means, spreads, np.tile(gauss, 2), query_variance)


@lru_cache(maxsize=16)  # a sweep over samples, ridge or loss meets the same few laws again; 12 MB each at most
def _sampled_law(task: Task, alignment: float, tau: float, points: int, seed: int) -> FeatureLaw:
    gauss, chunks = [], []
    for draws in token_chunks(points, task.length, task.signal_tokens, seed):
        gauss.append(draws.gauss)
        groups = (draws.signal.values, draws.signal.counts, draws.rest.values, draws.rest.counts)
        chunks.append(_pool(*groups, alignment * task.strength, tau))
    picked, on_signal, spread = np.concatenate(chunks, axis=2).reshape(3, -1)  # positives, then negatives
    signal = task.strength * on_signal
    label = np.repeat([1.0, -1.0], points)
    weight = np.where(label > 0, task.prevalence, 1 - task.prevalence) / points
    means = (picked + alignment * signal, math.sqrt(1 - alignment**2) * signal)
    return FeatureLaw(label, weight, *means, spread, np.tile(np.concatenate(gauss), 2), 1 / task.length)


@njit(cache=True, nogil=True)
def _pool(signal, signal_counts, rest, rest_counts, shift, tau):  # type: ignore[no-untyped-def]
    """Noise picked up, attention on the signal, |softmax|^2: (3, 2, points), positive class first.

    The classes share the noise tokens' sums; exponents are relative to a peak of their own, so nothing overflows.
    """
    points = rest.shape[0]
    out, work = np.empty((3, 2, points)), np.empty((3, max(rest.shape[1], signal.shape[1])))
    for i in range(points):
        signal_count, rest_count = signal_counts[i % len(signal_counts)], rest_counts[i % len(rest_counts)]
        total = (signal[i] * signal_count).sum() + (rest[i] * rest_count).sum()
        mean = total / (signal_count.sum() + rest_count.sum())
        peak, signal_peak = highest_token(rest[i], rest_count), highest_token(signal[i], signal_count)
        zeroth, first, square = _softmax_sums(rest[i], rest_count, tau, peak, mean, work)
        own_zeroth, own_first, own_square = _softmax_sums(signal[i], signal_count, tau, signal_peak, mean, work)
        for column in range(2):
            lifted = signal_peak + (shift if column == 0 else 0.0)
            top = max(peak, lifted)
            scale, own = math.exp(tau * (peak - top)), math.exp(tau * (lifted - top))
            total = scale * zeroth + own * own_zeroth
            out[0, column, i] = (scale * first + own * own_first) / total
            out[1, column, i] = own * own_zeroth / total if column == 0 else 0.0
            out[2, column, i] = (scale * scale * square + own * own * own_square) / (total * total)
    return out


@njit(cache=True, nogil=True)
def highest_token(values, counts):  # type: ignore[no-untyped-def]
    """The highest value that stands for any token."""
    highest = -math.inf
    for t in range(values.size):
        if counts[t] > 0 and values[t] > highest:
            highest = values[t]
    return highest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, several at a time
def _softmax_sums(values, counts, tau, peak, mean, work):  # type: ignore[no-untyped-def]
    """Sums of w, w (z - mean) and w^2 over the tokens z, with w = exp(tau (z - peak)); `work` is scratch."""
    exponents, powers, weights = work[0, : values.size], work[1, : values.size], work[2, : values.size]
    for t in range(values.size):
        exponents[t] = tau * (values[t] - peak)
    exponentials(exponents, powers, weights)
    zeroth = first = square = 0.0
    for t in range(values.size):
        zeroth += counts[t] * weights[t]
        first += counts[t] * weights[t] * (values[t] - mean)
        square += counts[t] * weights[t] * weights[t]
    return zeroth, first, square


@njit(cache=True, nogil=True)
def normal_cdf(x: float) -> float:
    """Probability that a standard Gaussian lies below x."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
