"""Muon: steps along the polar factor of an average of gradients, exact or by Newton and Schulz as in torch.optim.Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from whichtoken.checks import check_choice
from whichtoken.flows.mirror_steps import largest_magnitude
from whichtoken.flows.steps.settings import Settings, momentum

RANK = 1e-14  # singular values below this share of the largest are rounding: the polar factor leaves them out
NEGLIGIBLE = 1e-16  # rows below this share of the longest are not even looked at
_ORTHOGONAL = 1e-14
_FRESH = 0.1
_MOST_SWEEPS = 40
QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of Muon's iteration, as in torch.optim.Muon


@njit(cache=True, nogil=True)
def muon_step(
    weights: Any, descent: Any, log_scale: float, memory: Any, logs: Any, options: Any, lr: float, k: int, rows: int, columns: int
) -> None:  # fmt: skip
    """Step of `Muon`, in place; arrays are flat."""
    average, log_unit, logs[0] = momentum(memory, logs[0], options[0], options[1], descent, log_scale)
    peak = largest_magnitude(average)
    if peak == 0.0:
        return
    matrix = (average / peak).reshape((rows, columns))
    iterations, eps = int(options[2]), options[3]
    if iterations == 0:
        update = polar_factor(matrix)
    else:
        norm = math.sqrt(np.sum(matrix * matrix))
        log_norm = math.log(norm) + math.log(peak) + log_unit
        if eps > 0.0 and log_norm < math.log(eps):
            norm *= math.exp(min(math.log(eps) - log_norm, 700.0))
        update = newton_schulz(matrix / norm, iterations)
    weights += lr * math.sqrt(max(1.0, rows / columns)) * update.ravel()


@dataclass(frozen=True)
class Muon(Settings):
    """W <- W - lr sqrt(max(1, rows / columns)) U V^T, with U S V^T the average M of gradients.

    `newton-schulz` divides M by max(|M|, eps) and iterates `iterations` times, in float64 where torch takes bfloat16; gradients
    below eps then shorten the steps. Jordan et al., Muon: an optimizer for hidden layers, 2024.
    """

    momentum: float = 0.95
    nesterov: bool = True
    method: Literal["polar", "newton-schulz"] = "polar"
    iterations: int = 5
    eps: float = 1e-7

    step = staticmethod(muon_step)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, ("polar", "newton-schulz"))

    def numbers(self) -> tuple[float, ...]:
        iterations = self.iterations if self.method == "newton-schulz" else 0
        return self.momentum, float(self.nesterov), iterations, self.eps


@njit(cache=True, nogil=True)
def polar_factor(matrix: Any) -> Any:
    """U V^T of the singular value decomposition U S V^T: the steepest direction of the spectral norm."""
    left, values, right = thin_svd(matrix)
    if values.size == 0:
        return np.zeros_like(matrix)
    return compose_svd(left, (values > RANK * values.max()).astype(np.float64), right)


@njit(cache=True, nogil=True)
def newton_schulz(matrix: Any, steps: int) -> Any:
    """Muon's approximation of the polar factor of a matrix whose norm is at most one: singular values near 0.7 to 1.2."""
    first, second, third = QUINTIC
    wide = matrix.shape[0] <= matrix.shape[1]
    found = matrix.copy() if wide else matrix.T.copy()
    for _ in range(steps):
        gram = np.dot(found, found.T)
        found = first * found + np.dot(second * gram + third * np.dot(gram, gram), found)
    return found if wide else found.T.copy()


@njit(cache=True, nogil=True)
def compose_svd(left: Any, values: Any, right: Any) -> Any:
    """The matrix with these singular triples."""
    return np.dot((values.reshape(-1, 1) * left).T, right)


@njit(cache=True, nogil=True)
def thin_svd(matrix: Any) -> tuple[Any, Any, Any]:
    """Singular triples of a matrix (r, c): left (k, r), values (k,), right (k, c), k its numerical rank, in no order."""
    basis, rest = _row_basis(matrix)  # matrix = rest^T basis: what is left to decompose is small and graded
    rotations = np.eye(len(basis))
    for _ in range(_MOST_SWEEPS):
        if not _sweep(rest, rotations):
            break
    values = np.empty(len(basis))
    for j in range(len(basis)):
        values[j] = math.sqrt(_product(rest[j], rest[j]))
        if values[j] > 0.0:
            rest[j] /= values[j]
    return rest, values, np.dot(rotations, basis)


@njit(cache=True, nogil=True)
def _row_basis(matrix: Any) -> tuple[Any, Any]:
    """An orthonormal basis (k, c) of the rows, the longest remaining row first, and the rows' coordinates in it (k, r)."""
    rows, columns = matrix.shape
    rest, basis = matrix.copy(), np.empty((min(rows, columns), columns))
    count, largest = 0, 0.0
    while count < len(basis):
        longest, length = 0, 0.0
        for i in range(rows):
            size = math.sqrt(_product(rest[i], rest[i]))
            if size > length:
                longest, length = i, size
        largest = max(largest, length)
        if length <= NEGLIGIBLE * largest:
            break
        basis[count] = rest[longest] / length
        fresh = 1.0  # what is orthogonal to the earlier ones: little where only rounding was left to divide
        for _ in range(2):  # what rounding has left of the earlier ones is blown up: twice more is enough
            for j in range(count):
                _subtract(basis[count], basis[j], _product(basis[count], basis[j]))
            length = math.sqrt(_product(basis[count], basis[count]))
            fresh = min(fresh, length)
            if fresh < _FRESH:
                break
            basis[count] /= length
        if fresh < _FRESH:
            break
        for i in range(rows):
            _subtract(rest[i], basis[count], _product(rest[i], basis[count]))
        count += 1
    basis = basis[:count].copy()
    return basis, np.dot(basis, matrix.T)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, hence several at once
def _product(one: Any, other: Any) -> float:
    total = 0.0
    for k in range(one.size):
        total += one[k] * other[k]
    return total


@njit(cache=True, nogil=True)
def _subtract(row: Any, direction: Any, factor: float) -> None:
    for k in range(row.size):
        row[k] -= factor * direction[k]


@njit(cache=True, nogil=True)
def _sweep(rows: Any, rotations: Any) -> bool:
    """Rotate every pair of rows once; return whether any was not yet orthogonal."""
    moved = False
    for i in range(len(rows) - 1):
        for j in range(i + 1, len(rows)):
            one, other = _product(rows[i], rows[i]), _product(rows[j], rows[j])
            product = _product(rows[i], rows[j])
            if abs(product) <= _ORTHOGONAL * math.sqrt(one * other):
                continue
            moved = True
            slope = (other - one) / (2.0 * product)
            tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1.0 + slope * slope))
            cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
            _rotate(rows, i, j, cosine, cosine * tangent)
            _rotate(rotations, i, j, cosine, cosine * tangent)
    return moved


@njit(cache=True, nogil=True)
def _rotate(rows: Any, i: int, j: int, cosine: float, sine: float) -> None:
    for k in range(rows.shape[1]):
        one, other = rows[i, k], rows[j, k]
        rows[i, k] = cosine * one - sine * other
        rows[j, k] = sine * one + cosine * other
