"""The exact population map of gradient descent on positions and values, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.checks import check_integer
from whichtoken.display.shown import Shown
from whichtoken.theory.group_sparse.logistic_moments import (
    COARSE_NODES,
    NODES,
    Rule,
    half_normal_moments,
    quadrature_rule,
)
from whichtoken.theory.group_sparse.problem import Problem, positive

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
class FirstUpdate(Shown):
    """The model after one update from zero: the value vector moves, attention stays uniform.

    Attributes
    ----------
    alpha : float
        Length of v_1 along v*.
    gap : float
        Score of the relevant group minus score of any other; 0 here.
    accuracy : float
        Share of right labels.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import first_update
    >>> state = first_update(groups=4, lr=0.1)
    >>> round(state.alpha, 4), state.gap, round(state.accuracy, 4)
    (0.0399, 0.0, 0.6667)
    """

    alpha: float
    gap: float
    accuracy: float


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
    problem = Problem.checked(groups, sigma, encoding_norm2)
    positive("lr", lr)
    check_integer("steps", steps, 0)
    fine, coarse = (
        _iterate(groups, lr, steps, sigma, problem.encoding_norm2, *_rule(nodes)) for nodes in (NODES, COARSE_NODES)
    )
    loss, alpha, gap, curvature = fine
    lost = leakage(gap, groups)
    odds = np.sqrt(groups - 1) * (1 - lost) / lost
    return PopulationTrajectory(
        groups=groups,
        loss=loss,
        alpha=alpha,
        gap=gap,
        attention=1 - lost,
        accuracy=0.5 + np.sign(alpha) * np.arctan(odds) / np.pi,
        curvature=curvature,
        error=float(_relative_difference(fine[:3], coarse[:3])),
    )


def first_update(*, groups: int, lr: float, sigma: float = 1.0) -> FirstUpdate:
    """State after one update: v_1 = lr sigma v*/sqrt(2 pi), W = 0, the accuracy of uniform attention.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    sigma : float, default=1.0
        Standard deviation of the variables.

    Returns
    -------
    FirstUpdate
        Length of the value vector, gap and accuracy.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import first_update
    >>> round(first_update(groups=2, lr=0.1).accuracy, 4)  # with two groups and uniform attention
    0.75
    """
    problem = Problem.checked(groups, sigma, None)
    accuracy = 0.5 + math.atan(1 / math.sqrt(problem.groups - 1)) / math.pi
    return FirstUpdate(alpha=positive("lr", lr) * sigma * INVERSE_SQRT_2PI, gap=0.0, accuracy=accuracy)


def steps_to_select(
    *,
    groups: int,
    lr: float,
    attention: float = 0.9,
    sigma: float = 1.0,
    encoding_norm2: float | None = None,
    limit: int = 1_000_000,
) -> int | None:
    """First step at which the attention on the relevant group exceeds `attention`; None if not within `limit` steps.

    Steps times `lr` is nearly independent of a small learning rate.

    Parameters
    ----------
    groups : int
        D >= 2.
    lr : float
        Learning rate of W and v.
    attention : float, default=0.9
        Weight on the relevant group to reach.
    sigma : float, default=1.0
        Standard deviation of the variables.
    encoding_norm2 : float, optional
        c = |p_j|^2 of the orthogonal encodings; (groups + 1)/2, that of sine encodings, by default.
    limit : int, default=1000000
        Most steps that are tried.

    Returns
    -------
    int or None
        Number of updates.

    Examples
    --------
    >>> from whichtoken.theory.group_sparse import steps_to_select
    >>> steps_to_select(groups=8, lr=0.01) > steps_to_select(groups=4, lr=0.01)
    True
    """
    if not 0 < attention < 1:
        raise ValueError(f"attention={attention} must lie strictly between 0 and 1")
    horizon = min(1024, limit)
    while True:
        trajectory = population_map(groups=groups, lr=lr, steps=horizon, sigma=sigma, encoding_norm2=encoding_norm2)
        selected = np.flatnonzero(trajectory.attention > attention)
        if selected.size:
            return int(selected[0])
        if horizon == limit:
            return None
        horizon = min(4 * horizon, limit)


@cache
def _rule(nodes: int) -> Rule:
    return quadrature_rule(nodes)


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
