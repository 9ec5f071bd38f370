"""Linear readouts on fixed features, solved to the optimum: mean loss + (ridge / 2) |w|^2, bias unpenalized.

Square loss is one linear system, logistic loss Newton's method, hinge loss a primal-dual interior-point method on the dual
problem of support vectors: 0 <= a <= 1, y . a = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, qr, solve
from scipy.linalg.lapack import dposv
from scipy.special import expit

from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import LOSSES
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]
Map = Callable[[Array], Array]
MOST_STEPS = 100
GAP = 1e-12
KEPT = 0.995  # of the way to the boundary
MOST_NEWTON_STEPS = 200
NEWTON_TOLERANCE = 1e-10
ROUGH, SPARE = 1e-4, 1e-2  # tolerance from which on products of samples may be wrong, by so much of the ridge


@dataclass(frozen=True, eq=False)
class ConvexHead(Shown):
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
    features : array_like of shape (n, p)
        One row per sample.
    labels : array_like of shape (n,)
        -1 or +1, both present.
    ridge : float
        Weight of (1/2) |w|^2. 0 is accepted for logistic and square loss if the minimizer is unique.
    loss : {"logistic", "square", "hinge"}, default="logistic"
        What is minimized.

    Returns
    -------
    ConvexHead
        Readout, bias, and how close they are to the optimum.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import fit_head
    >>> head = fit_head([[1.0], [2.0], [-1.0], [-2.0]], labels=[1, 1, -1, -1], ridge=0.1)
    >>> head.train_error, round(abs(head.bias), 6), head.optimality < 1e-8
    (0.0, 0.0, True)
    """
    check_choice("loss", loss, LOSSES)
    if loss == "logistic":
        return next(logistic_heads(features, labels, (ridge,)))
    X, y = _check(features, labels, ridge, include_zero=loss != "hinge")
    if loss == "square":
        return _square(X, y, ridge)
    rows, lift, _ = _reduce(X)
    w, b, gap, steps = support_vectors(rows, y, ridge)
    head = _head(rows, y, w, b, ridge, np.maximum(1 - y * (rows @ w + b), 0).mean(), gap, steps)
    return replace(head, readout=lift(head.readout))


def logistic_heads(
    features: ArrayLike,
    labels: ArrayLike,
    ridges: Sequence[float],
    weights: ArrayLike | None = None,
    tolerance: float = NEWTON_TOLERANCE,
    start: tuple[Array, float] | None = None,
) -> Iterator[ConvexHead]:
    """Logistic readouts and biases for falling ridges, each when it is asked for.

    They share the reduction of the features, and each starts where those of the last two ridges point to.

    Parameters
    ----------
    features, labels
        As for `fit_head`.
    ridges : sequence of float
    weights : array (n,), optional
        Weights of the samples in the mean loss; all the same by default.
    tolerance : float
        The last Newton step is the first whose decrement is below this, relative to the root of the objective. The error
        after it is about the square of the one before.
    start : readout and bias, optional
        Near those of the strongest ridge; zero by default.
    """
    X, y = _check(features, labels, min(ridges))
    shares = np.full(len(y), 1 / len(y)) if weights is None else np.asarray(weights, dtype=float) / np.sum(weights)
    # of few samples rough readouts need the products alone, if rounding in these is a small part of the ridge
    size = np.einsum("ij,ij->", X, X)
    path: Iterable[tuple[Array, float, Array, int]]
    if tolerance > ROUGH and X.shape[1] > len(y) and 2.0**-53 * len(y) * size <= SPARE * min(ridges):
        rows = X
        begin = None if start is None else X @ start[0] + start[1]
        combined = combined_path(X @ X.T, y, ridges, shares, tolerance, begin)
        path = ((duals @ X, bias, scores, steps) for duals, bias, scores, steps in combined)
    else:
        rows, lift, lower = _reduce(X)
        design = np.hstack([rows, np.ones((len(y), 1))])
        x = np.zeros(design.shape[1]) if start is None else np.append(lower(start[0]), start[1])
        path = _follow(design, y, shares, ridges, x, tolerance, gram=False)
    for ridge, (w, b, scores, steps) in zip(ridges, path, strict=True):
        margins = y * scores
        loss = float(shares @ np.logaddexp(0, -margins))
        optimality = _gradient_norm(rows, -y * shares * expit(-margins), w, ridge)
        yield replace(_head(rows, y, w, b, ridge, loss, optimality, steps), readout=w if rows is X else lift(w))


def combined_path(
    products: Array, y: Array, ridges: Sequence[float], shares: Array, tolerance: float, scores: Array | None = None
) -> Iterator[tuple[Array, float, Array, int]]:
    """The same from products of the samples (n, n) alone: readouts as combinations of the samples (n,), biases, scores, steps.

    Reach for it where there are fewer samples than features. It begins at `scores` (n,) of the samples, or at zero.
    """
    design = np.hstack([products, np.ones((len(y), 1))])
    x = np.zeros(len(y) + 1)
    if scores is not None:
        x, _ = _combined_step(design, y, shares, ridges[0], scores, np.empty_like(products))
    return _follow(design, y, shares, ridges, x, tolerance, gram=True)


def _follow(
    design: Array, y: Array, shares: Array, ridges: Sequence[float], x: Array, tolerance: float, gram: bool
) -> Iterator[tuple[Array, float, Array, int]]:
    """Solutions for falling ridges with scores and steps, each from where the last two point to on a logarithmic scale."""
    # new arrays of this size in every step would cost as much as the step, in pages that the system has to clear
    space = np.empty_like(design), np.empty((len(x) - gram,) * 2)
    found: list[tuple[float, Array]] = []
    for ridge in ridges:
        if len(found) > 1 and ridge > 0:
            (log_one, one), (log_two, two) = found[-2:]
            x = two + (two - one) * (math.log(ridge) - log_two) / (log_two - log_one)
        x, steps = _newton(design, y, shares, ridge, x, tolerance, gram, space)
        found.append((math.log(ridge or 1.0), x))
        yield x[:-1], float(x[-1]), design @ x, steps


def _check(features: ArrayLike, labels: ArrayLike, ridge: float, include_zero: bool = True) -> tuple[Array, Array]:
    X, y = np.asarray(features, dtype=float), np.asarray(labels, dtype=float)
    check_range("ridge", ridge, 0.0, math.inf, include_low=include_zero)
    if X.ndim != 2 or y.shape != X.shape[:1] or not np.isfinite(X).all():
        raise ValueError(f"features of shape {X.shape} and labels of shape {y.shape} must be finite, (n, p) and (n,)")
    if set(np.unique(y)) != {-1.0, 1.0}:
        raise ValueError(f"labels must contain -1 and +1 and nothing else; got {np.unique(y)[:5]}")
    if ridge == 0 and X.shape[0] <= X.shape[1] + 1:
        raise ValueError(f"ridge=0 needs more samples than parameters; got n={X.shape[0]} for p={X.shape[1]}")
    return X, y


def _reduce(X: Array) -> tuple[Array, Map, Map]:
    """Samples in at most n coordinates, and the maps of readouts from these coordinates and into them.

    The optimal readout lies in the span of the samples.
    """
    n, p = X.shape
    if p <= n:
        return X, np.asarray, np.asarray
    basis, triangle = qr(X.T, mode="economic", check_finite=False)
    return np.ascontiguousarray(triangle.T), lambda w: basis @ w, lambda w: w @ basis


def _square(X: Array, y: Array, ridge: float) -> ConvexHead:
    """Ridge regression, through the smaller of the two Gram matrices."""
    n, p = X.shape
    mean, level = X.mean(axis=0), y.mean()
    centered, target = X - mean, (y - level) / n
    if p <= n:
        w = solve(centered.T @ centered / n + ridge * np.eye(p), centered.T @ target, assume_a="pos")
    else:
        w = centered.T @ solve(centered @ centered.T / n + ridge * np.eye(n), target, assume_a="pos")
    b = level - mean @ w
    slopes = X @ w + b - y
    return _head(X, y, w, b, ridge, (slopes**2 / 2).mean(), _gradient_norm(X, slopes / n, w, ridge), 1)


def _newton(
    design: Array,
    y: Array,
    shares: Array,
    ridge: float,
    x: Array,
    tolerance: float,
    gram: bool,
    space: tuple[Array, Array],
) -> tuple[Array, int]:
    """Logistic regression from x by Newton's method with step halving; the last column of the design is the bias.

    With `gram` the other columns are products of samples, and the readout is their combination by the other numbers in x.
    """
    penalty = np.append(np.full(len(x) - 1, ridge), 0.0)

    def objective(z: Array) -> tuple[float, Array]:
        scores = design @ z
        square = ridge * (z[:-1] @ (scores - z[-1])) if gram else penalty @ (z * z)
        return float(shares @ np.logaddexp(0, -y * scores) + square / 2), y * scores

    root, hessian = space
    value, margins = objective(x)
    for iteration in range(1, MOST_NEWTON_STEPS + 1):
        if ridge == 0 and np.abs(margins).max() > 100:
            raise ValueError("ridge=0 with separable samples has no minimizer; use ridge above 0 or more samples")
        if gram:
            end, curvature = _combined_step(design, y, shares, ridge, y * margins, hessian)
            step = x - end
            moved = design @ step
            decrease = curvature @ moved**2 + ridge * (step[:-1] @ (moved - step[-1]))
        else:
            wrong = expit(-margins)
            gradient = (-y * shares * wrong) @ design + penalty * x
            np.multiply(np.sqrt(shares * wrong * (1 - wrong))[:, None], design, out=root)
            np.matmul(root.T, root, out=hessian)
            hessian.flat[:: len(x) + 1] += penalty
            # LAPACK itself: small systems are cheaper than their checks
            _, step, failed = dposv(hessian.T, gradient, overwrite_a=1)
            if failed:
                raise ValueError(
                    f"ridge={ridge} leaves the minimizer undetermined; use a larger one, or fewer features"
                )
            decrease = gradient @ step
        length = 1.0
        trial, margins = objective(x - step)
        # below the rounding of the objective a full step is always right
        while decrease > 1e-13 * value and trial > value - 1e-4 * length * decrease:
            length /= 2
            trial, margins = objective(x - length * step)
        x, value = x - length * step, trial
        if decrease <= tolerance**2 * value:
            return x, iteration
    return x, MOST_NEWTON_STEPS


def _combined_step(
    design: Array, y: Array, shares: Array, ridge: float, scores: Array, system: Array
) -> tuple[Array, Array]:
    """Where Newton's step leads from these scores, and the curvature of the loss in them, (n,).

    With S^2 the curvature, K the products, r the slopes and f the scores, the combination a and the bias b solve
    ridge a = S u - b S v for (1 + S K S / ridge) (u, v) = (r / S + S f, S), such that the sum of a is 0.
    """
    wrong, right = expit(-y * scores), expit(y * scores)
    root = np.sqrt(shares * wrong * right)
    np.multiply(design[:, :-1], root / ridge, out=system)
    system *= root[:, None]
    system.flat[:: len(y) + 1] += 1
    sides = np.stack([y * np.sqrt(shares * wrong / right) + root * scores, root], axis=1)
    _, solved, _ = dposv(system.T, sides, overwrite_a=1)
    u, v = root @ solved
    bias = u / v
    return np.append(root * (solved[:, 0] - bias * solved[:, 1]) / ridge, bias), root**2


def support_vectors(X: Array, y: Array, ridge: float) -> tuple[Array, float, float, int]:
    """Readout (p,), bias, duality gap of the mean objective, and steps, for features (n, p) and labels -1 and +1."""
    n = len(y)
    F = y[:, None] * X / math.sqrt(n * ridge)
    a, u, s, t, bias = np.full(n, 0.5), np.full(n, 0.5), np.ones(n), np.ones(n), 0.0  # u = 1 - a, without rounding to 0
    steps, gap = 0, 1.0
    while gap > GAP and steps < MOST_STEPS:
        steps += 1
        system = _NewtonSystem(F, y, a, u, s, t, bias)
        # Mehrotra's predictor tells how far complementarity can fall, his corrector aims there
        da, _, ds, dt = system.direction(0.0, 0.0, 0.0)
        length = _longest([a, u, s, t], [da, -da, ds, dt])
        gap = float(a @ s + u @ t) / (2 * n)
        predicted = float((a + length * da) @ (s + length * ds) + (u - length * da) @ (t + length * dt)) / (2 * n)
        da, dbias, ds, dt = system.direction(gap * (predicted / gap) ** 3, da * ds, -da * dt)
        length = KEPT * _longest([a, u, s, t], [da, -da, ds, dt])
        a, u, bias = a + length * da, u - length * da, bias + length * dbias
        s, t = s + length * ds, t + length * dt
    w = F.T @ a / math.sqrt(n * ridge)
    objective = np.maximum(1 - y * (X @ w + bias), 0).mean() + ridge / 2 * w @ w
    return w, bias, float(objective - (a.mean() - ridge / 2 * w @ w)), steps


class _NewtonSystem:
    """The optimality conditions, linearized: (F F^T + D) da + y dbias = ..., y . da = ..., D diagonal."""

    def __init__(self, F: Array, y: Array, a: Array, u: Array, s: Array, t: Array, bias: float) -> None:
        self.F, self.y, self.a, self.u, self.s, self.t = F, y, a, u, s, t
        self.residual = F @ (F.T @ a) - 1 + bias * y - s + t
        self.diagonal = s / a + t / u
        scaled = F / np.sqrt(self.diagonal)[:, None]
        self.factor = cho_factor(np.eye(F.shape[1]) + scaled.T @ scaled)
        self.border = self._solve(y)

    def _solve(self, right: Array) -> Array:
        """Woodbury: the inverse of a diagonal plus a matrix of rank p."""
        plain = right / self.diagonal
        return np.asarray(plain - self.F @ cho_solve(self.factor, self.F.T @ plain) / self.diagonal)

    def direction(self, target: float, low: Array | float, high: Array | float) -> tuple[Array, float, Array, Array]:
        """Step in (a, bias, s, t) toward a s = u t = target, with second-order terms `low` and `high`."""
        a, u, s, t = self.a, self.u, self.s, self.t
        rest_s, rest_t = (target - low) / a - s, (target - high) / u - t
        free = self._solve(rest_s - rest_t - self.residual)
        dbias = float(self.y @ (self.a + free)) / float(self.y @ self.border)
        da = free - dbias * self.border
        return da, dbias, rest_s - s / a * da, rest_t + t / u * da


def _longest(values: list[Array], changes: list[Array]) -> float:
    """Largest multiple of a step, at most 1, that leaves no value negative."""
    value, change = np.concatenate(values), np.concatenate(changes)
    falling = change < 0
    return float(np.min(-value[falling] / change[falling], initial=1.0))


def _gradient_norm(X: Array, slopes: Array, w: Array, ridge: float) -> float:
    return math.hypot(float(np.linalg.norm(X.T @ slopes + ridge * w)), float(slopes.sum()))


def _head(
    X: Array, y: Array, w: Array, b: float, ridge: float, loss: float, optimality: float, iterations: int
) -> ConvexHead:
    error = float((y * (X @ w + b) <= 0).mean())
    return ConvexHead(w, float(b), float(loss), error, float(loss + ridge / 2 * w @ w), float(optimality), iterations)
