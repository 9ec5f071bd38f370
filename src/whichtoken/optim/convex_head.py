"""Linear readouts on fixed features, solved to the optimum: mean loss + (ridge / 2) |w|^2, bias unpenalised."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, qr, solve
from scipy.special import expit

from whichtoken.optim.support_vectors import support_vectors
from whichtoken.theory.sparse_tokens.task import LOSSES, check_choice, check_range

Array = NDArray[np.float64]

MAX_NEWTON = 200
TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class ConvexHead:
    """A trained readout and how close it is to the optimum."""

    readout: Array  # (p,)
    bias: float
    train_loss: float  # mean loss, without the ridge
    train_error: float
    objective: float
    optimality: float  # norm of the gradient; for the hinge loss, the duality gap
    iterations: int


def fit_head(features: ArrayLike, labels: ArrayLike, ridge: float, loss: str = "logistic") -> ConvexHead:
    """Train a readout and a bias.

    Parameters
    ----------
    features : array (n, p)
    labels : array (n,), -1 or +1, both present
    ridge : float
        0 is accepted for logistic and square loss if the minimiser is unique.
    loss : {"logistic", "square", "hinge"}
    """
    X, y = np.asarray(features, dtype=float), np.asarray(labels, dtype=float)
    check_choice("loss", loss, LOSSES)
    check_range("ridge", ridge, 0.0, math.inf, include_low=loss != "hinge")
    if X.ndim != 2 or y.shape != X.shape[:1] or not np.isfinite(X).all():
        raise ValueError(f"features of shape {X.shape} and labels of shape {y.shape} must be finite, (n, p) and (n,)")
    if set(np.unique(y)) != {-1.0, 1.0}:
        raise ValueError(f"labels must contain -1 and +1 and nothing else; got {np.unique(y)[:5]}")
    if ridge == 0 and X.shape[0] <= X.shape[1] + 1:
        raise ValueError(f"ridge=0 needs more samples than parameters; got n={X.shape[0]} for p={X.shape[1]}")
    if loss == "square":
        return _square(X, y, ridge)
    if X.shape[1] <= X.shape[0]:
        return _newton(X, y, ridge) if loss == "logistic" else _hinge(X, y, ridge)
    # the optimal readout lies in the span of the samples: solve there, in n coordinates instead of p
    basis, triangle = qr(X.T, mode="economic")
    head = _newton(triangle.T, y, ridge) if loss == "logistic" else _hinge(triangle.T, y, ridge)
    return ConvexHead(**{**vars(head), "readout": basis @ head.readout})


def _square(X: Array, y: Array, ridge: float) -> ConvexHead:
    """Ridge regression, through the smaller of the two Gram matrices."""
    n, p = X.shape
    mean, level = X.mean(axis=0), y.mean()
    centred, target = X - mean, (y - level) / n
    if p <= n:
        w = solve(centred.T @ centred / n + ridge * np.eye(p), centred.T @ target, assume_a="pos")
    else:
        w = centred.T @ solve(centred @ centred.T / n + ridge * np.eye(n), target, assume_a="pos")
    b = level - mean @ w
    slopes = X @ w + b - y
    return _head(X, y, w, b, ridge, (slopes**2 / 2).mean(), _gradient_norm(X, slopes / n, w, ridge), 1)


def _newton(X: Array, y: Array, ridge: float) -> ConvexHead:
    """Logistic regression by Newton's method with step halving."""
    n, p = X.shape
    design = np.hstack([X, np.ones((n, 1))])
    penalty = np.append(np.full(p, ridge), 0.0)
    x = np.zeros(p + 1)

    def objective(z: Array) -> float:
        return float(np.logaddexp(0, -y * (design @ z)).mean() + penalty @ z**2 / 2)

    value = objective(x)
    iterations = 0
    while iterations < MAX_NEWTON:
        iterations += 1
        wrong = expit(-y * (design @ x))
        gradient = design.T @ (-y * wrong) / n + penalty * x
        root = np.sqrt(wrong * (1 - wrong) / n)[:, None] * design
        hessian = root.T @ root
        hessian[np.diag_indices(p + 1)] += penalty
        if ridge == 0 and np.abs(design @ x).max() > 100:
            raise ValueError("ridge=0 with separable samples has no minimiser; use ridge above 0 or more samples")
        step = cho_solve(cho_factor(hessian), gradient)
        decrease = gradient @ step
        length = 1.0
        # below the rounding of the objective a full step is always right
        while decrease > 1e-13 * value and objective(x - length * step) > value - 1e-4 * length * decrease:
            length /= 2
        x = x - length * step
        value = objective(x)
        if decrease <= TOLERANCE**2 * value:
            break
    slopes = -y * expit(-y * (design @ x)) / n
    w, b = x[:-1], float(x[-1])
    loss = np.logaddexp(0, -y * (design @ x)).mean()
    return _head(X, y, w, b, ridge, loss, _gradient_norm(X, slopes, w, ridge), iterations)


def _hinge(X: Array, y: Array, ridge: float) -> ConvexHead:
    w, b, gap, steps = support_vectors(X, y, ridge)
    loss = np.maximum(1 - y * (X @ w + b), 0).mean()
    return _head(X, y, w, b, ridge, loss, gap, steps)


def _gradient_norm(X: Array, slopes: Array, w: Array, ridge: float) -> float:
    return math.hypot(float(np.linalg.norm(X.T @ slopes + ridge * w)), float(slopes.sum()))


def _head(
    X: Array, y: Array, w: Array, b: float, ridge: float, loss: float, optimality: float, iterations: int
) -> ConvexHead:
    error = float((y * (X @ w + b) <= 0).mean())
    return ConvexHead(w, float(b), float(loss), error, float(loss + ridge / 2 * w @ w), float(optimality), iterations)
