"""The exact population map of gradient descent on positions and values, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Self

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_integer
from whichtoken.display.shown import Shown


@dataclass(frozen=True)
class Problem:
    """Size, noise and encodings of a group-sparse problem."""

    groups: int
    sigma: float
    encoding_norm2: float

    @classmethod
    def check(cls, groups: int, sigma: float, encoding_norm2: float | None) -> Self:
        """Fill in the norm of the sine encodings, (groups + 1)/2, and refuse what no formula covers."""
        check_integer("groups", groups, 2)
        norm2 = (groups + 1) / 2 if encoding_norm2 is None else encoding_norm2
        return cls(groups, check_positive("sigma", sigma), check_positive("encoding_norm2", norm2))


def check_positive(name: str, value: float) -> float:
    """Return `value`, or raise ValueError unless it is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value} must be positive and finite")
    return value


PANELS = 8
NODES = 16  # sixteen points on panels of width at most 5/R: the poles of the sigmoid at i pi/R cost 1e-15
COARSE_NODES = 12
NORMAL_REACH = 9.0  # the normal density is 1e-18 there
LOGISTIC_REACH = 40.0  # exp(-40) = 4e-18

Rule = tuple[NDArray[np.float64], NDArray[np.float64]]


@cache
def quadrature_rule(nodes: int) -> Rule:
    """Gauss-Legendre points and weights on `PANELS` equal panels of [0, 1], each of shape (PANELS * nodes,)."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    panel_starts = np.arange(PANELS)[:, None]
    return ((panel_starts + (points + 1) / 2) / PANELS).ravel(), np.tile(weights / (2 * PANELS), PANELS)


@njit(cache=True, nogil=True)
def half_normal_moments(
    scale: float, points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Loss E softplus(-R H), pull E[H sigmoid(-R H)] and slope E[sigmoid'(R H)] for R = scale >= 0.

    All integrands are positive, so nothing cancels however large R is.
    """
    reach = NORMAL_REACH if scale * NORMAL_REACH <= LOGISTIC_REACH else LOGISTIC_REACH / scale
    loss = pull = slope = 0.0
    for k in range(points.size):
        h = reach * points[k]
        mass = weights[k] * math.exp(-0.5 * h * h)
        decay = math.exp(-scale * h)
        sigmoid = decay / (1.0 + decay)
        loss += mass * math.log1p(decay)
        pull += mass * h * sigmoid
        slope += mass * sigmoid / (1.0 + decay)
    normalizer = reach * math.sqrt(2.0 / math.pi)
    return normalizer * loss, normalizer * pull, normalizer * slope


Array = NDArray[np.float64]
INVERSE_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class PopulationTrajectory(Shown):
    """State of population gradient descent; every array has shape (steps + 1,), entry t is after t updates.

    Attributes
    ----------
    groups : int
        D.
    loss : array
        Population loss.
    alpha : array
        Length of v_1 along v*.
    gap : array
        Score of the relevant group minus score of any other.
    attention : array
        s, weight on the relevant group.
    accuracy : array
        Share of right labels.
    curvature : array
        Curvature of the loss in v_2; gradient descent keeps v_2 = 0 only while lr * curvature < 2.
    error : float
        Largest relative difference of loss, alpha and gap between two quadrature sizes.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import population_map
    >>> path = population_map(groups=4, lr=0.02, steps=100)
    >>> float(path.attention[0]), path.loss.shape, bool(path.attention[-1] > path.attention[0])
    (0.25, (101,), True)
    """

    groups: int
    loss: Array
    alpha: Array
    gap: Array
    attention: Array
    accuracy: Array
    curvature: Array
    error: float

    @property
    def leakage(self) -> Array:
        """1 - attention, to full relative precision."""
        return leakage(self.gap, self.groups)


@dataclass(frozen=True)
class FirstTwoUpdates(Shown):
    """The model after two updates from zero, no block of W frozen.

    Attributes
    ----------
    alpha : float
        Length of v_1 along v*; negative where the second update overshoots.
    gap : float
        Score that the positions give to the relevant group, minus that of any other.
    content : float
        W_11 along v*: two groups with u_i and u_j along v* get the score content u_i u_j beside that of their positions.
    next_fall : float
        The most that the third update takes from the gap, without W_11; 0 unless alpha is negative.
    leakage : float
        Attention on the irrelevant groups, without W_11.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import first_two_updates
    >>> state = first_two_updates(groups=32, lr=8.0, sigma=0.5)
    >>> round(state.gap, 2), state.alpha < 0, state.next_fall < 1e-4  # it overshoots, but the attention stays where it is
    (21.66, True, True)
    """

    alpha: float
    gap: float
    content: float
    next_fall: float
    leakage: float


def leakage(gap: Array, groups: int) -> Array:
    """Attention on the irrelevant groups, without the cancellation of 1 - s."""
    decay = np.exp(-np.abs(gap))  # one form would overflow on one side
    others = groups - 1
    return np.where(gap > 0, others * decay / (1 + others * decay), others / (others + decay))


def population_map(
    *, groups: int, lr: float, steps: int, sigma: float = 1.0, encoding_norm2: float | None = None
) -> PopulationTrajectory:
    """Population gradient descent from zero with the content block W_11 frozen at zero, exactly.

    By permutation symmetry the state is (alpha, gap); the expectations of the update are one-dimensional integrals
    (see `logistic_moments`), so a step costs microseconds and is exact to rounding.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    steps : int
        Number of updates.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    PopulationTrajectory
        Loss, alpha, gap, attention and accuracy after every update.

    References
    ----------
    Dynamics of Theorem 3.2 and Lemmas 5.1 and 5.2 of Zhang, Meng, Cao, arXiv 2504.08638.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import population_map
    >>> path = population_map(groups=4, lr=0.02, steps=1000)
    >>> bool((path.loss[1:] < path.loss[:-1]).all())  # the loss falls at every step
    True
    """
    problem = Problem.check(groups, sigma, encoding_norm2)
    check_positive("lr", lr)
    check_integer("steps", steps, 0)
    fine, coarse = (
        _iterate(groups, lr, steps, sigma, problem.encoding_norm2, *quadrature_rule(nodes))
        for nodes in (NODES, COARSE_NODES)
    )
    loss, alpha, gap, curvature = fine
    lost = leakage(gap, groups)
    # the angle, not the odds: a gap beyond 745 leaves nothing to divide by
    accuracy = 0.5 + np.sign(alpha) * np.arctan2(np.sqrt(groups - 1) * (1 - lost), lost) / np.pi
    error = float(_relative_difference(fine[:3], coarse[:3]))
    return PopulationTrajectory(groups, loss, alpha, gap, 1 - lost, accuracy, curvature, error)


def first_two_updates(
    *, groups: int, lr: float, sigma: float = 1.0, encoding_norm2: float | None = None
) -> FirstTwoUpdates:
    r"""State after two updates, in closed form: how a large constant learning rate makes the leakage exponentially small in D.

    The first update leaves W = 0 and v_1 = lr sigma v*/sqrt(2 pi) = alpha_1 v*. In the second, attention is uniform and
    f = alpha_1 (u_1 + ... + u_D) with u_i = <v*, x_i>. Write g y = (y - tanh(f/2))/2, where g = sigmoid(-y f). As f is
    symmetric in the groups, E[tanh(f/2) (u_* - u_j)] = 0, so the gap moves by exactly

        lr c^2 (alpha_1/D) E[g y (u_* - u_j)] = lr c^2 (alpha_1/D) E|u_*|/2 = (lr sigma c)^2/(2 pi D),

    (lr sigma)^2 (D + 1)^2/(8 pi D) with sine encodings: linear in D at a constant lr sigma, hence
    1 - s = exp(-(lr sigma)^2 D/(8 pi) + O(log D)). The sum of the u_i has standard deviation sigma sqrt(D), so with
    R = alpha_1 sigma sqrt(D) and pull(R) = E[H sigmoid(-R H)], H half-normal, t = E[tanh(f/2) sum_i u_i]/2 is
    sigma sqrt(D) (1/sqrt(2 pi) - pull(R)), and

        alpha_2 = alpha_1 + lr (sigma/sqrt(2 pi) - t),
        content = lr alpha_1 sigma^2 (sigma (1 - 1/D)^2/sqrt(2 pi) - (1 - 1/D) t),

    the latter because the mean of the u_i is independent of their spread about it. For large R the score of the content is
    of size sigma^2 |content| = 4 sigma^4/sqrt(D) gaps: W_11 is negligible for sigma^4 far below sqrt(D)/4 only. From
    then on the gap moves by lr c^2 alpha D/(D - 1) s (1 - s) E[g y (u_* - u_j)] an update, where the expectation is at most
    sigma sqrt(2/pi) while alpha < 0: a gap far above log D stays, however far alpha overshoots.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    FirstTwoUpdates
        Value vector, gap and content score, and what the next update can do to the gap.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import population_map, first_two_updates
    >>> path = population_map(groups=16, lr=4.0, steps=2)
    >>> round(first_two_updates(groups=16, lr=4.0).gap, 6) == round(float(path.gap[2]), 6)
    True
    """
    c = Problem.check(groups, sigma, encoding_norm2).encoding_norm2
    first = check_positive("lr", lr) * sigma * INVERSE_SQRT_2PI
    root, others = math.sqrt(groups), 1 - 1 / groups
    _, pull, _ = half_normal_moments(first * sigma * root, *quadrature_rule(NODES))
    saturated = sigma * root * (INVERSE_SQRT_2PI - pull)
    alpha = first + lr * (sigma * INVERSE_SQRT_2PI - saturated)
    gap = (lr * sigma * c) ** 2 / (2 * math.pi * groups)
    content = lr * first * sigma**2 * (sigma * others**2 * INVERSE_SQRT_2PI - others * saturated)
    lost = float(leakage(np.array(gap), groups))
    fall = lr * c**2 / others * max(-alpha, 0.0) * (1 - lost) * lost * 2 * sigma * INVERSE_SQRT_2PI
    return FirstTwoUpdates(alpha, gap, content, fall, lost)


def _relative_difference(values: tuple[Array, ...], others: tuple[Array, ...]) -> float:
    tiny = np.finfo(float).tiny  # both are exactly zero at the start
    return max(float(np.max(np.abs(a - b) / (np.abs(a) + tiny))) for a, b in zip(values, others, strict=True))


@njit(cache=True, nogil=True)
def _iterate(
    groups: int, lr: float, steps: int, sigma: float, encoding_norm2: float, points: Array, weights: Array
) -> tuple[Array, Array, Array, Array]:
    """Loss, alpha, gap and curvature in v_2 along the map, each of shape (steps + 1,)."""
    others = groups - 1
    losses, alphas, gaps, curvatures = np.empty((4, steps + 1))
    alpha = gap = 0.0
    for t in range(steps + 1):
        decay = math.exp(-abs(gap))
        if gap > 0:
            s, lost = 1.0 / (1.0 + others * decay), others * decay / (1.0 + others * decay)
        else:
            s, lost = decay / (decay + others), others / (decay + others)
        spread = lost * lost / others
        norm = math.sqrt(s * s + spread)  # of the mean attention over groups
        scale = abs(alpha) * groups * sigma * norm
        loss, pull, slope = half_normal_moments(scale, points, weights)
        # R - A per unit of |alpha| D sigma; the two agree once attention has concentrated, so never subtract them
        sign, mismatch = (1.0, spread / (norm + s)) if alpha >= 0 else (-1.0, norm + s)
        excess = abs(alpha) * groups * sigma * mismatch
        losses[t] = loss + excess * INVERSE_SQRT_2PI
        alphas[t], gaps[t] = alpha, gap
        curvatures[t] = slope * encoding_norm2 * (groups * norm) ** 2
        contrast = pull + slope * (excess + alpha * groups * sigma * lost / others)
        gap += lr * encoding_norm2**2 * groups / others * alpha * s * lost * sigma * contrast
        alpha += lr * groups * sigma * sign * (norm * pull - mismatch * INVERSE_SQRT_2PI)
    return losses, alphas, gaps, curvatures


LOSS_CONSTANT = math.sqrt(2 / math.pi) * math.pi**2 / 12  # R E softplus(-R H) for large R, H half-normal


@dataclass(frozen=True)
class LatePhase(Shown):
    """Asymptotic state at the given steps; arrays of the shape of `step`.

    Attributes
    ----------
    loss : array
        Population loss.
    alpha : array
        Length of v_1 along v*.
    attention : array
        Weight on the relevant group.
    leakage : array
        1 - attention.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import late_phase
    >>> late = late_phase(groups=4, lr=0.02, step=[1e5, 8e5])
    >>> round(float(late.alpha[1] / late.alpha[0]), 6)  # alpha grows as the cube root of the steps
    2.0
    """

    loss: NDArray[np.float64]
    alpha: NDArray[np.float64]
    attention: NDArray[np.float64]
    leakage: NDArray[np.float64]


def late_phase(
    *, groups: int, lr: float, step: ArrayLike, sigma: float = 1.0, encoding_norm2: float | None = None
) -> LatePhase:
    """Loss ~ step^-1/3, alpha ~ step^1/3 and leakage ~ step^-2/3 with their constants.

    With C = sqrt(2/pi) pi^2/12: alpha = (3 lr C step/(D sigma))^(1/3), 1 - s = k (D-1)/(c alpha)^2, where k > 0 solves
    (sigma^2/sqrt(2 pi)) (D/c)^2 k^2 + C k = 2 C, and loss = C/(D sigma alpha s). The factor s tends to 1; it is kept
    because the margin has scale D sigma alpha s, which is what halves the error of the law at moderate steps. Too early for
    the law, leakage and loss are those of the start: 1 - 1/D and log 2.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    step : array_like
        Numbers of updates, positive.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    LatePhase
        Loss, alpha, attention and leakage at these steps.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import late_phase
    >>> early, late = late_phase(groups=4, lr=0.02, step=[1e4, 1e6]).attention
    >>> bool(early < late < 1)
    True
    """
    problem = Problem.check(groups, sigma, encoding_norm2)
    check_positive("lr", lr)
    step = np.asarray(step, dtype=float)
    if not np.all(step > 0):
        raise ValueError(f"step={step.min()} must be positive: the law holds late in training")
    c = problem.encoding_norm2
    alpha = np.cbrt(3 * lr * LOSS_CONSTANT * step / (groups * sigma))
    quadratic = sigma**2 / math.sqrt(2 * math.pi) * (groups / c) ** 2
    # the positive root, written so that it keeps its digits when the quadratic term vanishes
    k = 4 / (1 + math.sqrt(1 + 8 * quadratic / LOSS_CONSTANT))
    leakage = np.minimum(k * (groups - 1) / (c * alpha) ** 2, 1 - 1 / groups)
    attention = 1 - leakage
    loss = np.minimum(LOSS_CONSTANT / (groups * sigma * alpha * attention), math.log(2))
    return LatePhase(loss=loss, alpha=alpha, attention=attention, leakage=leakage)


def steps_to_loss(*, groups: int, lr: float, loss: float, sigma: float = 1.0) -> float:
    """Updates until the population loss falls to `loss`, C^2/(3 lr D^2 sigma^2 loss^3), from the late-phase law.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    loss : float
        Population loss to reach.
    sigma : float, default=1.0
        Standard deviation of the variables.

    Returns
    -------
    float
        Number of updates.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import steps_to_loss
    >>> ratio = steps_to_loss(groups=4, lr=0.02, loss=0.01) / steps_to_loss(groups=4, lr=0.02, loss=0.02)
    >>> round(ratio, 6)  # half the loss takes eight times as long
    8.0
    """
    problem = Problem.check(groups, sigma, None)
    check_positive("lr", lr)
    if not 0 < loss < math.log(2):
        raise ValueError(f"loss={loss} must lie in (0, log 2): training starts at log 2")
    return LOSS_CONSTANT**2 / (3 * lr * (problem.groups * sigma) ** 2 * loss**3)


SELECTED = 0.95  # beyond this attention the curvature only falls
LONGEST_PATH = 1 << 18


@dataclass(frozen=True)
class StabilityBounds(Shown):
    """Largest stable learning rates; gradient descent from zero has to stay below all of them.

    Attributes
    ----------
    uniform : float
        Bound that v_2 sets under uniform attention, 8/(D c).
    path : float
        Bound that v_2 sets at the worst point of the path, 2/max curvature.
    value : float
        Bound that v_1 sets under uniform attention, 8/(D sigma^2).

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import stability_bounds
    >>> bounds = stability_bounds(groups=4)
    >>> bounds.learning_rate == min(bounds.uniform, bounds.path, bounds.value)
    True
    """

    uniform: float
    path: float
    value: float

    @property
    def learning_rate(self) -> float:
        """The smallest of the bounds."""
        return min(self.uniform, self.path, self.value)


@lru_cache(maxsize=64)
def stability_bounds(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> StabilityBounds:
    """Learning rates above which gradient descent cannot keep v_2 = 0 or grow v_1 steadily.

    The path is that of small learning rates, on which the position-only population map is followed.

    Parameters
    ----------
    groups : int
        D >= 2.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    StabilityBounds
        Three bounds on the learning rate.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import stability_bounds
    >>> stability_bounds(groups=4).value
    2.0
    """
    problem = Problem.check(groups, sigma, encoding_norm2)
    path = 2 / _highest_curvature(problem)
    return StabilityBounds(8 / (groups * problem.encoding_norm2), path, 8 / (groups * sigma**2))


def default_learning_rate(*, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> float:
    """A learning rate inside the bounds: min(0.16/D, 2/(D c)), for many groups 0.8 of the bound on the path.

    Above sigma = 1 the first is divided by sigma^2, as the curvature in v_1 grows with it.

    Parameters
    ----------
    groups : int
        D >= 2.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.

    Returns
    -------
    float
        Learning rate of W and v.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import default_learning_rate, stability_bounds
    >>> default_learning_rate(groups=4) < stability_bounds(groups=4).learning_rate
    True
    """
    problem = Problem.check(groups, sigma, encoding_norm2)
    path = stability_bounds(groups=groups, sigma=sigma, encoding_norm2=encoding_norm2).path
    return min(_smooth_rate(problem), 2 / (groups * problem.encoding_norm2), 0.8 * path)


def _smooth_rate(problem: Problem) -> float:
    return 0.16 / (problem.groups * max(1.0, problem.sigma**2))


def _highest_curvature(problem: Problem) -> float:
    # the gap moves at most as fast as c^2/4 per unit of time: keep its step small too
    lr = min(_smooth_rate(problem), 0.4 / problem.encoding_norm2)
    steps = 4096
    while True:
        trajectory = population_map(
            groups=problem.groups, lr=lr, steps=steps, sigma=problem.sigma, encoding_norm2=problem.encoding_norm2
        )
        if trajectory.attention[-1] > SELECTED or steps >= LONGEST_PATH:
            return float(trajectory.curvature.max())
        steps *= 4
