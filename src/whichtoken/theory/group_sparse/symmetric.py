r"""Population gradient descent on all of W and v, reduced by the symmetries of the problem.

Rotations about v*, permutations of the irrelevant groups and X -> -X leave, for every step,

    v = (alpha v*, 0),   W_12 = W_21 = 0,   W_11 = along v* v*^T + across (I - v* v*^T),

and position scores P^T W_22 P that take five values, one for each kind of (key, query) pair. The expectations of these
eight numbers are estimated on fresh samples; the noise in the other directions, which a plain batch has, is absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.checks import check_integer
from whichtoken.display.shown import Shown
from whichtoken.theory.group_sparse.population import Problem, check_positive

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SymmetricTrajectory(Shown):
    """State of the reduced map; every array has steps + 1 entries, entry t is after t updates.

    Attributes
    ----------
    loss : array
        Mean loss of the samples of the step.
    loss_error : array
        Monte Carlo standard error of the loss.
    alpha : array
        Length of v_1 along v*.
    along : array
        W_11 in direction v*.
    across : array
        W_11 in the directions orthogonal to v*.
    position : array of shape (steps + 1, 5)
        Scores for (j*,j*), (j*,j), (i,j*), (i,i), (i,j), key first.
    attention : array
        Mean weight on the relevant group.
    min_attention : array
        Smallest over the samples of the step.
    accuracy : array
        Share of right labels.
    leakage : array
        Mean weight on the other groups, 1 - attention to full relative precision.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.group_sparse import symmetric_map
    >>> path = symmetric_map(groups=3, group_dim=2, lr=0.05, steps=100, rng=np.random.default_rng(0))
    >>> path.position.shape, bool(path.loss[-1] < path.loss[0])
    ((101, 5), True)
    """

    loss: Array
    loss_error: Array
    alpha: Array
    along: Array
    across: Array
    position: Array
    attention: Array
    min_attention: Array
    accuracy: Array
    leakage: Array


def symmetric_map(
    *,
    groups: int,
    group_dim: int,
    lr: float,
    steps: int,
    rng: np.random.Generator,
    samples: int = 1000,
    sigma: float = 1.0,
    encoding_norm2: float | None = None,
) -> SymmetricTrajectory:
    """Gradient descent from zero on all blocks of W and on v, with `samples` fresh samples per step.

    Parameters
    ----------
    groups, group_dim : int
        D >= 2 and d >= 1.
    lr, steps : float and int
        Learning rate of W and v, and number of updates.
    rng : numpy.random.Generator
        Source of the samples.
    samples : int, default=1000
        Fresh samples per step.
    sigma, encoding_norm2 : float, optional
        As in `population_map`.

    Returns
    -------
    SymmetricTrajectory
        State after every update.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.group_sparse import symmetric_map
    >>> path = symmetric_map(groups=3, group_dim=2, lr=0.05, steps=100, rng=np.random.default_rng(0))
    >>> bool(path.attention[-1] > path.attention[0])
    True
    """
    problem = Problem.check(groups, sigma, encoding_norm2)
    check_positive("lr", lr)
    for name, value, least in (("group_dim", group_dim, 1), ("steps", steps, 0), ("samples", samples, 1)):
        check_integer(name, value, least)
    rates = lr * np.array([1.0, 1.0, 1.0 / max(group_dim - 1, 1)] + [problem.encoding_norm2**2] * 5)
    states, seen = np.zeros((steps + 1, 8)), np.empty((steps + 1, 6))
    for t in range(steps + 1):
        X = sigma * rng.standard_normal((samples, groups, group_dim))
        drift = np.zeros(8)
        _accumulate(X, states[t], drift, seen[t])
        if t < steps:
            states[t + 1] = states[t] + rates * drift
    loss, loss_error, attention, min_attention, accuracy, leakage = seen.T
    alpha, along, across = states.T[:3]
    return SymmetricTrajectory(
        loss, loss_error, alpha, along, across, states[:, 3:], attention, min_attention, accuracy, leakage
    )


@njit(cache=True, nogil=True)
def _accumulate(X: Array, state: Array, drift: Array, seen: Array) -> None:
    """Sample means of the drift of (alpha, along, across, five scores) and of what is seen on the way.

    Group 0 is the relevant one and coordinate 0 of a group lies along v*. `seen` becomes loss, its standard error, mean
    and smallest attention on group 0, accuracy, mean attention on the other groups.
    """
    samples, groups, _ = X.shape
    orbit = orbits(groups)
    orbit_size = np.bincount(orbit.ravel())
    weights, products = np.empty((groups, groups)), np.empty((groups, groups))
    loss_squares = 0.0
    seen[:] = 0.0
    seen[3] = 1.0
    for n in range(samples):
        u = X[n, :, 0]
        means = _attend(X[n], state, orbit, weights, products)
        output = means.sum()
        margin = state[0] * output * np.sign(u[0])
        decay = math.exp(-abs(margin))
        loss = math.log1p(decay) + max(-margin, 0.0)
        loss_squares += loss * loss / samples
        seen[0] += loss / samples
        seen[2] += weights[:, 0].mean() / samples
        seen[3] = min(seen[3], weights[:, 0].min())
        seen[4] += (margin > 0) / samples
        seen[5] += weights[:, 1:].sum() / groups / samples
        pull = np.sign(u[0]) * (decay if margin > 0 else 1.0) / (1.0 + decay) / samples
        drift[0] += pull * output
        for j in range(groups):
            for i in range(groups):
                change = pull * state[0] * weights[j, i] * (u[i] - means[j])
                drift[1] += change * u[i] * u[j]
                drift[2] += change * products[j, i]
                drift[3 + orbit[i, j]] += change / orbit_size[orbit[i, j]]
    seen[1] = math.sqrt(max(loss_squares - seen[0] ** 2, 0.0) / samples)


@njit(cache=True, nogil=True)
def _attend(x: Array, state: Array, orbit: NDArray[np.int64], weights: Array, products: Array) -> Array:
    """Softmax weights [query, key] and products <x_j, x_i> across v* of one sample; returns the attended mean of u."""
    groups, group_dim = x.shape
    means = np.empty(groups)
    for j in range(groups):
        highest = -np.inf
        for i in range(groups):
            products[j, i] = 0.0
            for k in range(1, group_dim):
                products[j, i] += x[j, k] * x[i, k]
            score = state[3 + orbit[i, j]] + state[1] * x[i, 0] * x[j, 0] + state[2] * products[j, i]
            weights[j, i] = score
            highest = max(highest, score)
        total = mean = 0.0
        for i in range(groups):
            weights[j, i] = math.exp(weights[j, i] - highest)
            total += weights[j, i]
            mean += weights[j, i] * x[i, 0]
        weights[j] /= total
        means[j] = mean / total
    return means


@njit(cache=True, nogil=True)
def orbits(groups: int) -> NDArray[np.int64]:
    """Kind of each (key, query) pair under permutations of the irrelevant groups, in the order of `position`."""
    orbit = np.full((groups, groups), 4)
    for i in range(groups):
        orbit[i, i] = 3
        orbit[0, i] = 1
        orbit[i, 0] = 2
    orbit[0, 0] = 0
    return orbit
