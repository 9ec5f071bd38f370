"""l_p regularization path of one attention head: the best key-query matrix of each norm, followed outwards.

The loss approaches its infimum exponentially fast in the norm, so that what is minimized is the logarithm of the distance
to it, summed from terms that are all positive: no digit is lost at distances like exp(-300).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from whichtoken.attention.kernels import NO_NULL, weigh_in_logs
from whichtoken.attention.losses import Loss, compiled_log_slope
from whichtoken.checks import check_count
from whichtoken.datasets.mirror_descent import AttentionProblem
from whichtoken.display.shown import Shown
from whichtoken.norms import power_norm, signed_power
from whichtoken.theory.mirror_descent import directional_divergence, inverse_mirror_map, mirror_map

Matrix = NDArray[np.float64]
Objective = Callable[[Matrix], tuple[float, Matrix]]  # of weights: value and gradient

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _NODE_WEIGHTS = (_NODES + 1.0) / 2.0, _NODE_WEIGHTS / 2.0  # on [0, 1]
_SMOOTH = 2.0  # length over which a slope is smooth enough for one set of nodes
_LBFGS = {"maxiter": 5000, "maxfun": 20000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9}


@dataclass(frozen=True, eq=False)
class RegularizationPath(Shown):
    """Minimizers of the loss over |W|_p <= R, one per radius R."""

    p: float
    radii: NDArray[np.float64]  # (k,), ascending
    directions: Matrix  # (k, d, d), W / R
    log_excess: NDArray[np.float64]  # (k,), log(L(W) - L_inf) with the infimum of the loss L_inf
    stationarity: NDArray[np.float64]  # (k,), D_p between W and its steepest descent direction, zero at a minimizer
    selected: NDArray[np.int64]  # (n,), the token of highest token score: where the path leads

    def _headline(self) -> str:
        return f"{len(self.radii)} radii up to {self.radii[-1]:.4g} in the l_{self.p:g} norm"


def regularization_path(
    problem: AttentionProblem,
    radii: Iterable[float],
    *,
    p: float,
    rng: np.random.Generator,
    starts: int = 2,
    loss: Loss = "logistic",
) -> RegularizationPath:
    """Minimize the mean loss over |W|_p <= R for each radius; R -> infinity leads to the l_p max-margin direction.

    The regularization path of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581, for a fixed decoder. With W = R V / |V|_p,
    log(L - L_inf) is minimized by L-BFGS, L_inf = mean_i l(max_t gamma_it). The problem is not convex: `starts` random
    matrices are each followed from radius to radius, beside the minimizer of a convex surrogate, and the best is kept.

    Parameters
    ----------
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d), labels (n,) and decoder (d,); in some sequence two token scores must differ.
    radii : iterable of float
        Positive numbers.
    p : float
        Exponent of the norm, above 1.
    rng : numpy.random.Generator
        Source of the random starts.
    starts : int, default=2
        Random starts that are followed.
    loss : Loss, default="logistic"
        As in `attention_descent`.

    Returns
    -------
    RegularizationPath
        Directions of each radius, and how near they are to a minimizer.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionTokens
    >>> from whichtoken.flows import regularization_path
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionTokens(sequences=2, length=3, dim=4).sample(rng)
    >>> path = regularization_path(problem, [1.0, 10.0], p=2.0, rng=rng, starts=1)
    >>> path.directions.shape, bool(path.log_excess[1] < path.log_excess[0])
    ((2, 4, 4), True)
    """
    radius = check_radii(radii, starts)
    gamma = problem.token_scores
    if not np.ptp(gamma, axis=1).any():
        raise ValueError("token_scores must differ in some sequence: every W is optimal")
    selected = gamma.argmax(axis=1)
    excess, behind = log_excess(problem, loss), lag(problem, selected)
    dim = problem.decoder.shape[0]
    sphere = Sphere(p, (dim, dim))
    guide, *followed = (sphere.parameters(rng.standard_normal((dim, dim))) for _ in range(starts + 1))
    rows = []
    for size in radius.tolist():
        guide = sphere.minimize(behind, size, guide)[0]
        found = [sphere.minimize(excess, size, point) for point in [guide, *followed]]
        followed = [point for point, _ in found[1:]]
        best, value = min(found, key=lambda end: end[1])
        direction = sphere.direction(best)
        rows.append((direction, value, stationarity(excess, size, direction, p)))
    directions, values, distances = (np.array(column) for column in zip(*rows, strict=True))
    return RegularizationPath(p, radius, directions, values, distances, selected)


def check_radii(radii: Iterable[float], starts: int) -> NDArray[np.float64]:
    """The radii in ascending order, each once."""
    radius = np.unique(np.fromiter(radii, dtype=np.float64))
    if radius.size == 0 or not 0.0 < radius[0] <= radius[-1] < math.inf:
        raise ValueError(f"radii={radius.tolist()} must be finite positive numbers, at least one")
    check_count("starts", starts, 1)
    return radius


def stationarity(objective: Objective, radius: float, direction: Matrix, p: float) -> float:
    """D_p between a direction and that of steepest descent at this radius: zero at a minimizer on the sphere."""
    return directional_divergence(inverse_mirror_map(-objective(radius * direction)[1], p), direction, p)


def log_excess(problem: AttentionProblem, loss: Loss) -> Objective:
    """log(L - L_inf)."""
    tokens, queries = (np.ascontiguousarray(x, dtype=np.float64) for x in (problem.tokens, problem.queries))
    return partial(
        _excess_kernel, tokens, queries, problem.token_scores, compiled_log_slope(loss), _NODES, _NODE_WEIGHTS
    )


def lag(problem: AttentionProblem, selected: NDArray[np.int64]) -> Objective:
    """Log-sum-exp of how far the selected tokens lag behind the others: convex, so that no other token holds W back."""
    ahead = np.take_along_axis(problem.tokens, selected[:, None, None], axis=1) - problem.tokens  # (n, T, d)
    rows = np.einsum("ntd,ne->ntde", ahead, problem.queries)[ahead.any(axis=2)]  # (m, d, d)

    def objective(weights: Matrix) -> tuple[float, Matrix]:
        lags = -np.tensordot(rows, weights)  # (m,)
        return float(logsumexp(lags)), -np.tensordot(softmax(lags), rows, axes=1)

    return objective


@dataclass(frozen=True)
class Sphere:
    """The unit sphere of l_p, parametrized by all of space without a preferred length.

    An entry is sign(u) |u|^power. For p < 2, power 2/p makes it the Euclidean sphere: in the entries themselves the norm
    has infinite curvature at zero.
    """

    p: float
    shape: tuple[int, ...]  # of the weights

    @property
    def power(self) -> float:
        return max(2.0 / self.p, 1.0)

    def parameters(self, weights: Matrix) -> Matrix:
        """Parameters of unit norm for the direction of the weights, flat."""
        unit = weights.ravel() / power_norm(weights, self.p)
        return signed_power(unit, 1.0 / self.power)

    def direction(self, parameters: Matrix) -> Matrix:
        """Weights of unit norm."""
        unit = parameters / power_norm(parameters, self.p * self.power)
        return signed_power(unit, self.power).reshape(self.shape)

    def minimize(self, objective: Objective, radius: float, start: Matrix) -> tuple[Matrix, float]:
        """Parameters of a local minimum, of unit norm, and its value."""
        end = minimize(self.pull_back, start, (objective, radius), "L-BFGS-B", True, options=_LBFGS)
        return end.x / power_norm(end.x, self.p * self.power), float(end.fun)

    def pull_back(self, parameters: Matrix, objective: Objective, radius: float) -> tuple[float, Matrix]:
        """An objective and its gradient in the parameters, at `radius` times their direction."""
        direction = self.direction(parameters)
        value, gradient = objective(radius * direction)
        direction, slope = direction.ravel(), radius * gradient.ravel()
        tangent = slope - np.dot(slope, direction) * mirror_map(direction, self.p)  # lengths do not count
        scale = power_norm(parameters, self.p * self.power)
        return value, tangent * self.power * np.abs(parameters / scale) ** (self.power - 1.0) / scale


@njit(cache=True, nogil=True)
def _excess_kernel(
    tokens: Any, queries: Any, gamma: Any, log_slope: Any, nodes: Any, node_weights: Any, weights: Any
) -> Any:
    """log(L - L_inf) and its gradient (d, d).

    With the best token b of sequence i, its label margin is gamma_ib - s_i, where s_i = sum_t s_it (gamma_ib - gamma_it)
    has no negative term, and l(gamma_ib - s_i) - l(gamma_ib) = s_i times the mean of |l'| between the two. Shapes: tokens
    (n, T, d), queries (n, d), gamma (n, T), weights (d, d).
    """
    sequences, length, dim = tokens.shape
    keys = np.dot(queries, weights.T)  # (n, d)
    log_terms = np.full(sequences, -math.inf)  # log of l(m_i) - l(gamma_ib)
    log_pulls = np.full((sequences, length), -math.inf)  # log of |l'(m_i)| s_it |gamma_ib - gamma_it - s_i|
    signs = np.zeros((sequences, length))
    log_attention, shares = np.empty(length), np.empty(length)
    for i in range(sequences):
        best = np.argmax(gamma[i])
        scores = np.dot(tokens[i] - tokens[i, best], keys[i])  # (T,)
        weigh_in_logs(scores, None, None, NO_NULL, log_attention, shares)
        shortfalls = gamma[i, best] - gamma[i]  # (T,)
        log_shares = log_attention + np.log(np.maximum(shortfalls, 1e-300))
        log_shares[shortfalls == 0.0] = -math.inf
        peak = log_shares.max()
        if peak == -math.inf:
            continue
        log_shortfall = peak + math.log(np.exp(log_shares - peak).sum())
        shortfall = math.exp(log_shortfall)
        log_terms[i] = log_shortfall + _log_mean_slope(gamma[i, best], shortfall, log_slope, nodes, node_weights)
        offset = log_slope(gamma[i, best] - shortfall)
        for t in range(length):
            pull = shortfalls[t] - shortfall
            if pull != 0.0:
                signs[i, t] = math.copysign(1.0, pull)
                log_pulls[i, t] = offset + log_attention[t] + math.log(abs(pull))
    peak = log_terms.max()
    log_total = peak + math.log(np.exp(log_terms - peak).sum())
    moves = np.zeros((sequences, dim))
    for i in range(sequences):
        best = np.argmax(gamma[i])
        for t in range(length):
            factor = signs[i, t] * math.exp(log_pulls[i, t] - log_total)
            for j in range(dim):
                moves[i, j] += factor * (tokens[i, t, j] - tokens[i, best, j])
    return log_total - math.log(sequences), np.dot(moves.T, queries)


@njit(cache=True, nogil=True)
def _log_mean_slope(top: float, width: float, log_slope: Any, nodes: Any, node_weights: Any) -> float:
    """Logarithm of the mean of |l'| over [top - width, top], by Gauss's rule on panels."""
    panels = 1 + int(width / _SMOOTH)
    panel = width / panels
    largest = max(log_slope(top - width), log_slope(top))
    total = 0.0
    for number in range(panels):
        for node in range(nodes.size):
            value = log_slope(top - panel * (number + nodes[node]))
            total += node_weights[node] * math.exp(value - largest)
    return float(largest + math.log(total / panels))
