"""Training loss, test error and capacity of the three classifiers, without a simulation.

The attention readout sees the features of a frozen query; the pooled model is attention with query 0, the vectorized
one a readout of length * dim weights. All three reduce to the saddle point of a low-dimensional law (Barnfield, Cui,
Lu, arXiv 2509.25153, Theorems 4 and 5). The capacity is the number of samples per dimension up to which the training set is
linearly separable (Conjecture 1). `saddle` and `feature_law` explain the symbols om, m, b, sig, V and f1, f2, rho.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import entr, ndtr

from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import LOSSES, Task
from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw, refinements
from whichtoken.theory.sparse_tokens.saddle import SOLVED, SaddlePoint, saddle_point, square_saddle_point

Array = NDArray[np.float64]
NEGLIGIBLE = 1e-9  # error or loss of which no digit is asked for
OBSERVABLES = (
    "train_loss", "train_error", "test_error", "objective", "query_overlap", "signal_overlap", "bias", "rest_norm",
    "response",
)  # fmt: skip


@dataclass(frozen=True)
class Readout(SaddlePoint):
    """Prediction for a trained readout, in the limit of large dimension.

    Attributes
    ----------
    query_overlap : float
        Overlap of the readout with the query.
    signal_overlap : float
        Overlap with the signal, orthogonal to the query.
    bias : float
        Trained bias.
    rest_norm : float
        Norm of what is left of the readout.
    response : float
        Trace of the inverse Hessian over n: how strongly a sample pulls on its own score.
    train_loss : float
        Mean training loss, without the ridge.
    residual : float
        Relative imbalance that is left in the equations.
    iterations : int
        Steps of the solver.
    train_error : float
        Share of wrong labels in training.
    test_error : float
        Share of wrong labels on fresh data.
    objective : float
        train_loss + (ridge / 2) |w|^2.
    error_estimate : float
        Numerical error of test_error, absolute.
    train_loss_error : float
        Numerical error of train_loss, absolute.
    converged : bool
        Equations solved and accuracy reached; where they are not solved all values are nan.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import erm
    >>> task = dict(length=4, signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> readout = erm(model="pooled", **task, samples_per_dim=4.0, ridge=0.1)
    >>> readout.converged, readout.train_error < readout.test_error < 0.5
    (True, True)
    """

    train_error: float
    test_error: float
    objective: float
    error_estimate: float
    train_loss_error: float
    converged: bool


def erm(
    *,
    model: str = "attention",
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    alignment: float | None = None,
    inverse_temperature: float | None = None,
    samples_per_dim: float,
    ridge: float,
    loss: str = "logistic",
    accuracy: float = 1e-3,
    start: SaddlePoint | None = None,
) -> Readout:
    """Predict the minimizer of mean loss + (ridge / 2) |w|^2 over readout and unpenalized bias.

    Parameters
    ----------
    model : {"attention", "pooled", "vectorized"}, default="attention"
        Which classifier.
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    alignment : float, optional
        Cosine of query and signal; needed for attention only.
    inverse_temperature : float, optional
        Inverse temperature times norm of the query; needed for attention only.
    samples_per_dim : float
        n / d, for every model (never n / (L d)).
    ridge : float
        0 is accepted where a unique minimizer exists.
    loss : {"logistic", "square", "hinge"}, default="logistic"
        What is minimized.
    accuracy : float, default=0.001
        Wanted numerical error of test error and training loss, relative to test error and objective; more points are
        spent until it is reached or, near the interpolation threshold of a small ridge, the largest size is used up.
    start : SaddlePoint, optional
        Solution of a neighboring problem (a `Readout` is one), to begin from.

    Returns
    -------
    Readout
        `converged` is false, and every value is nan, where the equations could not be solved.

    References
    ----------
    Barnfield, Cui, Lu, arXiv 2509.25153, Theorems 4 and 5.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import erm
    >>> task = dict(length=4, signal_tokens=1, strength=4.0, prevalence=0.5, ridge=0.1)
    >>> few, many = (erm(model="pooled", **task, samples_per_dim=ratio).test_error for ratio in (2.0, 20.0))
    >>> many < few < 0.5
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    check_choice("loss", loss, LOSSES)
    check_range("samples_per_dim", samples_per_dim, 0.0, math.inf)
    check_range("ridge", ridge, 0.0, math.inf, include_low=True)
    check_range("accuracy", accuracy, 0.0, 1.0)
    laws = refinements(task, model, alignment, inverse_temperature, accuracy)
    parameters = length if model == "vectorized" else 1
    if ridge == 0.0:
        threshold: float = parameters
        if loss != "square":
            query: dict[str, Any] = {"alignment": alignment, "inverse_temperature": inverse_temperature}
            threshold = capacity(model=model, **asdict(task), **query)
        if samples_per_dim <= threshold:
            raise ValueError(
                f"ridge=0 needs samples_per_dim above {threshold:.4g} with {loss} loss, or no unique minimizer exists; "
                f"got samples_per_dim={samples_per_dim}"
            )
    return predict_readout(laws, loss, samples_per_dim / parameters, ridge, accuracy, start)


def predict_readout(
    refined: Iterable[list[FeatureLaw]], loss: str, samples_per_dim: float, ridge: float, accuracy: float = 1e-3,
    start: SaddlePoint | None = None,
) -> Readout:  # fmt: skip
    """Solve on finer and finer laws until the copies at one size, and two sizes, agree to the accuracy."""
    previous = np.full(len(OBSERVABLES), np.nan)
    iterations = 0
    for laws in refined:
        points: list[SaddlePoint] = []
        if start is not None and not math.isfinite(start.response):
            start = None
        for law in laws:
            points.append(solve_readout(law, loss, samples_per_dim, ridge, points[-1] if points else start))
        start = points[-1]
        iterations += sum(point.iterations for point in points)
        table = np.array([_observables(law, loss, ridge, point) for law, point in zip(laws, points, strict=True)])
        values = table.mean(axis=0)
        deviation = table.std(axis=0, ddof=1) if len(laws) > 1 else np.zeros(values.size)
        # two standard errors; a change of size may reveal a bias that the copies share
        error = np.maximum(2 * deviation / math.sqrt(len(laws)), np.abs(values - previous) / 4)
        previous = values
        result = dict(zip(OBSERVABLES, values.tolist(), strict=True))
        doubt = dict(zip(OBSERVABLES, error.tolist(), strict=True))
        # products, not ratios: the errors of a strong signal underflow to zero
        reached = doubt["test_error"] <= accuracy * max(result["test_error"], NEGLIGIBLE) and doubt[
            "train_loss"
        ] <= accuracy * max(result["objective"], NEGLIGIBLE)
        residual = max(point.residual for point in points)
        if reached or residual > SOLVED:  # finer laws are no easier to solve
            break
    solved = residual <= SOLVED and result["objective"] <= constant_loss(laws[0], loss) * (1 + accuracy)
    return Readout(
        **(result if solved else dict.fromkeys(OBSERVABLES, math.nan)),
        residual=residual,
        iterations=iterations,
        error_estimate=doubt["test_error"] if solved else math.nan,
        train_loss_error=doubt["train_loss"] if solved else math.nan,
        converged=reached and solved,
    )


def constant_loss(law: FeatureLaw, loss: str) -> float:
    """Least mean loss of a constant score, which no minimizer exceeds: the readout may be zero."""
    share = float(law.weight @ (law.label > 0))
    if loss == "square":
        return 2 * share * (1 - share)
    return 2 * min(share, 1 - share) if loss == "hinge" else float(entr(share) + entr(1 - share))


def solve_readout(
    law: FeatureLaw, loss: str, samples_per_dim: float, ridge: float, start: SaddlePoint | None = None
) -> SaddlePoint:
    """The saddle point on one law, by the method that suits the loss."""
    if loss == "square":
        return square_saddle_point(law, samples_per_dim, ridge)
    return saddle_point(law, loss, samples_per_dim, ridge, start)


def _observables(law: FeatureLaw, loss: str, ridge: float, point: SaddlePoint) -> tuple[float, ...]:
    """The values of OBSERVABLES on one law."""
    om, m, b, sig, v = point.query_overlap, point.signal_overlap, point.bias, point.rest_norm, point.response
    mean, noise = law.score(om, m, b, m**2 + sig**2)
    # the training score is the prox of a fresh one, and negative iff the fresh one lies this far below zero
    pull = law.spread * (v / 2 if loss == "logistic" else v)
    train_error = float(law.weight @ ndtr(-(law.label * mean + pull) / noise))
    test_error = law.error(om, m, b, m**2 + sig**2)
    objective = point.train_loss + ridge / 2 * point.readout_norm**2
    return point.train_loss, train_error, test_error, objective, om, m, b, sig, v


def capacity(
    *,
    model: str = "attention",
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    alignment: float | None = None,
    inverse_temperature: float | None = None,
    accuracy: float = 1e-3,
    points: float = math.inf,
) -> float:
    """Samples per dimension below which some readout and bias separate the training set, with high probability.

    Conjecture 1 of Barnfield, Cui, Lu (arXiv 2509.25153), in the form that Gordon's comparison gives: one over the minimum
    over (om, m, b) of E[(sqrt(1 + m^2) G - y (om f1 + m f2 + b) / sqrt(rho))_+^2].

    Parameters
    ----------
    model : {"attention", "pooled", "vectorized"}, default="attention"
        Which classifier.
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    alignment, inverse_temperature : float, optional
        Cosine of query and signal, and inverse temperature times norm of the query; needed for attention only.
    accuracy : float, default=0.001
        Wanted relative numerical error.
    points : float, default=inf
        At most this many Sobol points per class are spent on the accuracy.

    Returns
    -------
    float
        n / d.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import capacity
    >>> task = dict(length=4, signal_tokens=1, strength=2.0, prevalence=0.5)
    >>> pooled, flat = (capacity(model=model, **task) for model in ("pooled", "vectorized"))
    >>> abs(flat / pooled - 4) < 0.01  # one weight per position separates `length` times as many
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    overlaps, value = np.zeros(3), math.nan
    for laws in refinements(task, model, alignment, inverse_temperature, accuracy):
        values = []
        for law in laws:
            violation, overlaps = _least_violation(law, overlaps)
            values.append(1 / violation)
        previous, value = value, float(np.mean(values))
        error = max(2 * float(np.std(values)) / math.sqrt(len(laws)), abs(value - previous) / 4)
        if error <= accuracy * value or laws[0].label.size >= 2 * points:
            break
    return value * length if model == "vectorized" else value


def _least_violation(law: FeatureLaw, start: Array) -> tuple[float, Array]:
    """Least mean squared violation of the margin over (om, m, b), and where: a smooth convex problem.

    With S^2 = 1 + m^2 + om^2 var(g_bar) / rho and T = y (om f1 + m f2 + b) / sqrt(rho), a node contributes
    E[(S G - T)_+^2] = (S^2 + T^2) Phi(-T/S) - T S phi(T/S).
    """
    root = law.label / np.sqrt(law.spread)
    columns = np.stack([root * law.query_mean, root * law.signal_mean, root])  # (3, nodes)
    variances = np.stack([law.query_variance / law.spread, np.ones_like(root), np.zeros_like(root)])

    def violation(x: Array) -> float:
        level, margin, tail, density = _terms(x)
        return float(law.weight @ ((level**2 + margin**2) * tail - margin * level * density))

    def gradient(x: Array) -> Array:
        level, margin, tail, density = _terms(x)
        return 2 * (columns @ (law.weight * (margin * tail - level * density)) + x * (variances @ (law.weight * tail)))

    def hessian(x: Array) -> Array:
        level, margin, tail, density = _terms(x)
        slope = variances * x[:, None] / level  # of the level
        cross = (columns * (law.weight * density)) @ slope.T
        both = (columns * (law.weight * tail)) @ columns.T
        bend = (slope * (law.weight * density * margin / level)) @ slope.T
        return 2 * (both - cross - cross.T + bend + np.diag(variances @ (law.weight * tail)))

    def _terms(x: Array) -> tuple[Array, Array, Array, Array]:
        level = np.sqrt(1 + x**2 @ variances)
        margin = x @ columns
        ratio = margin / level
        return level, margin, ndtr(-ratio), np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)

    found = minimize(violation, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-9})
    return float(found.fun), found.x
