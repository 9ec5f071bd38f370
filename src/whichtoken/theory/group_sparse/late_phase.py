"""Power laws of the population map once attention has concentrated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.shown import Shown
from whichtoken.theory.group_sparse.problem import Problem, positive

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
    problem = Problem.checked(groups, sigma, encoding_norm2)
    positive("lr", lr)
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
    problem = Problem.checked(groups, sigma, None)
    positive("lr", lr)
    if not 0 < loss < math.log(2):
        raise ValueError(f"loss={loss} must lie in (0, log 2): training starts at log 2")
    return LOSS_CONSTANT**2 / (3 * lr * (problem.groups * sigma) ** 2 * loss**3)
