"""What one would take instead of structure-aware descent to train two attention factors, counted in gradient evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg

from whichtoken.checks import check_choice
from whichtoken.theory.attention_regression.structure_aware_descent import (
    FactorObjective,
    Found,
    gram_step,
    noise_damping,
)

Array = NDArray[np.float64]

TORCH_OPTIMIZERS: dict[str, Callable[[list[torch.Tensor], float], torch.optim.Optimizer]] = {
    "gradient": lambda factors, lr: torch.optim.SGD(factors, lr=lr),
    "adam": lambda factors, lr: torch.optim.Adam(factors, lr=lr),
    "muon": lambda factors, lr: torch.optim.Muon(factors, lr=lr, weight_decay=0.0),
    "lbfgs": lambda factors, lr: torch.optim.LBFGS(
        factors, lr=lr, max_iter=10_000, line_search_fn="strong_wolfe", tolerance_grad=0.0, tolerance_change=0.0
    ),
}


class Evaluation(NamedTuple):
    """The factors at which a method asked for the loss and gradient, and the loss it found."""

    P: Array
    Q: Array
    loss: float


class _BudgetSpentError(Exception):
    pass


class _Recorder:
    """An objective that remembers where it was evaluated and stops the method when the budget is spent."""

    def __init__(self, objective: FactorObjective, budget: int) -> None:
        self.objective, self.budget, self.samples = objective, budget, objective.samples
        self.evaluations: list[Evaluation] = []

    def __call__(self, P: Array, Q: Array) -> Found:
        if not (np.isfinite(P).all() and np.isfinite(Q).all()):
            raise _BudgetSpentError
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.objective(P, Q)
        if np.isfinite(found[0]):
            self.evaluations.append(Evaluation(P.copy(), Q.copy(), found[0]))
        if len(self.evaluations) >= self.budget or not np.isfinite(found[0]):
            raise _BudgetSpentError
        return found


def run_baseline(
    method: str, objective: FactorObjective, P: Array, Q: Array, lr: float, budget: int
) -> list[Evaluation]:
    """Every evaluation of a method, from the start on, until the budget is spent or the loss is not finite.

    Parameters
    ----------
    method
        `gradient`, `adam`, `muon` or `lbfgs` of torch.optim; `alternating` steps on one factor at a time with the
        damped Gram matrix of the other; `gauss-newton` with the full damped matrix of the limit.
    lr
        Step size of the method.
    """
    recorder = _Recorder(objective, budget)
    try:
        if method in TORCH_OPTIMIZERS:
            _torch_descent(recorder, P, Q, method, lr)
        else:
            check_choice("method", method, [*TORCH_OPTIMIZERS, *_HAND_WRITTEN])
            _HAND_WRITTEN[method](recorder, P, Q, lr)
    except _BudgetSpentError:
        pass
    return recorder.evaluations


def _torch_descent(objective: FactorObjective, P: Array, Q: Array, method: str, lr: float) -> None:
    factors = [torch.tensor(factor, requires_grad=True) for factor in (P, Q)]
    optimizer = TORCH_OPTIMIZERS[method](factors, lr)

    def closure() -> float:
        loss, *gradients = objective(*(factor.detach().numpy() for factor in factors))
        for factor, gradient in zip(factors, gradients, strict=True):
            factor.grad = torch.from_numpy(np.ascontiguousarray(gradient))
        return loss

    while True:
        optimizer.step(closure)


def _alternating(objective: FactorObjective, P: Array, Q: Array, lr: float) -> None:
    while True:
        loss, P_gradient, Q_gradient = objective(P, Q)
        P, _ = gram_step(P, Q, P_gradient, Q_gradient, lr, _damping(objective, P, Q, loss))
        loss, P_gradient, Q_gradient = objective(P, Q)
        _, Q = gram_step(P, Q, P_gradient, Q_gradient, lr, _damping(objective, P, Q, loss))


def _gauss_newton(objective: FactorObjective, P: Array, Q: Array, lr: float) -> None:
    outputs, dim = P.shape
    while True:
        loss, P_gradient, Q_gradient = objective(P, Q)
        by_P = np.einsum("ac,bk->abck", np.eye(outputs), Q).reshape(outputs * dim, -1)  # d (P Q^T)_ab / d P_ck
        by_Q = np.einsum("ak,bc->abck", P, np.eye(dim)).reshape(outputs * dim, -1)
        jacobian = np.hstack([by_P, by_Q])
        normal = jacobian.T @ jacobian
        # the gauge directions make the matrix singular, so the damping must not vanish
        damping = max(_damping(objective, P, Q, loss), 1e-10) * linalg.eigvalsh(normal)[-1]
        gradient = np.concatenate([P_gradient.ravel(), Q_gradient.ravel()])
        move = linalg.solve(normal + damping * np.eye(len(normal)), gradient, assume_a="pos")
        P = P - lr * move[: P.size].reshape(P.shape)
        Q = Q - lr * move[P.size :].reshape(Q.shape)


def _damping(objective: FactorObjective, P: Array, Q: Array, loss: float) -> float:
    outputs, dim = P.shape
    return noise_damping(loss, outputs, dim, objective.samples, float(linalg.svdvals(P @ Q.T)[0]))


_HAND_WRITTEN: dict[str, Callable[[FactorObjective, Array, Array, float], Any]] = {
    "alternating": _alternating,
    "gauss-newton": _gauss_newton,
}
