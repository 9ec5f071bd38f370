"""Shampoo, and Adam in Shampoo's basis (in the manner of SOAP), for gradients that shrink below every float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from whichtoken.checks import check_range
from whichtoken.flows.mirror_steps import largest_magnitude
from whichtoken.flows.steps.adam import quotient
from whichtoken.flows.steps.settings import Settings, blend, blend_squares

_NEGLIGIBLE = 1e-12  # entries and eigenvalues below this share of the largest are rounding


@njit(cache=True, nogil=True)
def shampoo_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step k = 1, 2, ... of `Shampoo`, in place; arrays are flat."""
    beta = options[0]
    left, right, _ = _split(memory, rows, columns)
    matrix = descent.reshape((rows, columns))
    _precondition(left, right, logs, beta, matrix, log_scale)
    if log_scale == -math.inf:
        return
    sums = 1.0 if beta == 1.0 else 1.0 - beta**k
    first, log_first = _inverse_fourth_root(left.reshape((rows, rows)), logs[0])
    second, log_second = _inverse_fourth_root(right.reshape((columns, columns)), logs[1])
    update = np.dot(np.dot(first, matrix), second)
    weights += lr * math.sqrt(sums) * math.exp(log_scale + log_first + log_second) * update.ravel()


@njit(cache=True, nogil=True)
def soap_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step k = 1, 2, ... of `Soap`, in place; arrays are flat."""
    beta1, beta2, eps = options[0], options[1], options[3]
    left, right, rest = _split(memory, rows, columns)
    left_basis, right_basis, moments = _split(rest, rows, columns)
    first, root = moments[: rows * columns], moments[rows * columns :]
    matrix = descent.reshape((rows, columns))
    _precondition(left, right, logs, options[2], matrix, log_scale)
    if logs[0] > -math.inf:
        left_basis[:] = np.linalg.eigh(left.reshape((rows, rows)))[1].ravel()
        right_basis[:] = np.linalg.eigh(right.reshape((columns, columns)))[1].ravel()
    to_left, to_right = left_basis.reshape((rows, rows)), right_basis.reshape((columns, columns))
    rotated = np.dot(np.dot(to_left.T, matrix), to_right).ravel()
    logs[2] = blend(first, logs[2], beta1, descent, log_scale, 1.0 - beta1)
    logs[3] = blend_squares(root, logs[3], beta2, rotated, log_scale, 1.0 - beta2)
    correction = math.sqrt(1.0 - beta2**k)
    average = np.dot(np.dot(to_left.T, first.reshape((rows, columns))), to_right).ravel()
    # outside of the range of L and R a gradient is rounding over rounding
    average = np.where(root > _NEGLIGIBLE * root.max(), average, 0.0)
    steps = quotient(average, logs[2], root, logs[3], eps * correction).reshape((rows, columns))
    update = np.dot(np.dot(to_left, steps), to_right.T)
    weights += lr * correction / (1.0 - beta1**k) * update.ravel()


@njit(cache=True, nogil=True)
def _split(memory: Any, rows: int, columns: int) -> tuple[Any, Any, Any]:
    return memory[: rows**2], memory[rows**2 : rows**2 + columns**2], memory[rows**2 + columns**2 :]


@njit(cache=True, nogil=True)
def _precondition(left: Any, right: Any, logs: Any, beta: float, matrix: Any, log_scale: float) -> None:
    share = 1.0 if beta == 1.0 else 1.0 - beta
    logs[0] = blend(left, logs[0], beta, np.dot(matrix, matrix.T).ravel(), 2.0 * log_scale, share)
    logs[1] = blend(right, logs[1], beta, np.dot(matrix.T, matrix).ravel(), 2.0 * log_scale, share)


@njit(cache=True, nogil=True)
def _inverse_fourth_root(gram: Any, log_unit: float) -> tuple[Any, float]:
    """(exp(log_unit) gram)^(-1/4) on the range of gram, and the logarithm of its factor."""
    values, vectors = np.linalg.eigh(gram)
    peak = largest_magnitude(values)
    unit = log_unit + math.log(peak)
    roots = np.zeros_like(values)
    for j in range(values.size):
        value = max(values[j], 0.0) * math.exp(log_unit - unit)
        if value > _NEGLIGIBLE:
            roots[j] = value**-0.25
    return np.dot(vectors * roots, vectors.T), -0.25 * unit


@dataclass(frozen=True)
class Shampoo(Settings):
    """W <- W - lr L^(-1/4) G R^(-1/4) on the ranges of L and R, which are averages of G G^T and G^T G.

    beta < 1 averages, corrected for the start; beta = 1 sums up, as in Gupta, Koren, Singer, arXiv 1802.09568. beta = 0 is Muon
    without momentum.
    """

    beta: float = 0.9

    step = staticmethod(shampoo_step)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("beta", self.beta, 0.0, 1.0, include_low=True, include_high=True)

    def memory(self, rows: int, columns: int) -> int:
        return rows**2 + columns**2


@dataclass(frozen=True)
class Soap(Settings):
    """Adam on gradients that are rotated into the eigenvectors of Shampoo's L and R, which are taken anew in every step.

    In the manner of Vyas et al., SOAP, arXiv 2409.11321, with eigenvectors where they iterate.
    """

    betas: tuple[float, float] = (0.95, 0.95)
    shampoo_beta: float = 0.95
    eps: float = 1e-8

    step = staticmethod(soap_step)

    def memory(self, rows: int, columns: int) -> int:
        return 2 * (rows**2 + columns**2 + rows * columns)
