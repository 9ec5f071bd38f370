"""The ends of the Schatten norms, nuclear (p = 1) and spectral (p = inf): pairs of `margin.extreme` for singular values.

Z = [[I, -V], [-V^T, I]] / 2 is positive definite as long as the singular values of V are below one, and its partner is a
positive definite X with X_12 = Y. With the scaling of Nesterov and Todd, P Z P = X, the linear map is
H(E) = (P_11 E P_22 + P_12 E^T P_12) / 2. Rows are of rank one, so A H A^T has products of two bilinear forms as entries; and in
the singular vectors of P_12 relative to P_11 and P_22, H couples only E_ij with E_ji, which inverts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from whichtoken.margin.constraints import Constraints
from whichtoken.margin.extreme import longest_step, minimal_extreme_norm
from whichtoken.margin.geometry import SchattenNorm
from whichtoken.margin.solution import Solution
from whichtoken.norms import Vector


@dataclass(frozen=True)
class MatrixPair:
    """X and V; square matrices V are flattened for the outside."""

    x: Vector  # (2 d, 2 d)
    bounded: Vector  # V, (d, d)

    @property
    def v(self) -> Vector:
        return self.bounded.ravel()

    @property
    def y(self) -> Vector:
        return self.x[: self._half, self._half :].ravel()

    @property
    def degree(self) -> int:
        return len(self.x)

    @property
    def products(self) -> float:
        return float(np.sum(self._values**2))

    def constant(self, target: float, cross: Vector | float) -> Vector:
        scaled, (root, _, _) = self._right_hand_side(target, cross), self._scaling
        return (root[: self._half] @ scaled @ root[self._half :].T).ravel()

    def forward(self, change: Vector) -> Vector:
        own, mixed, other = self._blocks
        matrix = change.reshape(own.shape)
        return ((own @ matrix @ other + mixed @ matrix.T @ mixed) / 2).ravel()

    def inverse(self, change: Vector) -> Vector:
        left, right, own, swapped = self._turned
        matrix = left @ change.reshape(own.shape) @ right.T
        return np.asarray(left.T @ (own * matrix + swapped * matrix.T) @ right).ravel()

    def gram(self, rows: Constraints) -> Vector:
        gram = rows.product_gram(*self._blocks)
        gram /= 2
        return gram

    def inverse_gram(self, rows: Constraints) -> Vector:
        left, right, own, swapped = self._turned
        turned = replace(rows, left=rows.left @ left.T, right=rows.right @ right.T, tokens=None)
        return turned.gram(own.ravel(), swapped.ravel())

    def step(self, target: float, cross: Vector | float, by_v: Vector) -> MatrixStep:
        change, (root, _, values) = by_v.reshape(self.bounded.shape), self._scaling
        scaled_z = -root.T @ _symmetric(change) @ root / 2
        return MatrixStep(self, self._right_hand_side(target, cross) - scaled_z, scaled_z, values, change)

    def moved(self, scaled_x: Vector, by_v: Vector) -> MatrixPair:
        """With X changed by G scaled_x G^T."""
        x = self.x + self._scaling[0] @ scaled_x @ self._scaling[0].T
        return MatrixPair((x + x.T) / 2, self.bounded + by_v)

    @property
    def _half(self) -> int:
        return len(self.bounded)

    @cached_property
    def _scaling(self) -> tuple[Vector, Vector, Vector]:
        """G, G^-1 and the eigenvalues of G^-1 X G^-T = G^T Z G, which is diagonal; P = G G^T."""
        z = (np.eye(len(self.x)) - _symmetric(self.bounded)) / 2
        lower_x, lower_z = np.linalg.cholesky(self.x), np.linalg.cholesky(z)
        left, values, right = np.linalg.svd(lower_z.T @ lower_x)
        root = np.sqrt(values)
        return (lower_x @ right.T) / root, (lower_z @ left).T / root[:, None], values

    @property
    def _values(self) -> Vector:
        return self._scaling[2]

    @cached_property
    def _blocks(self) -> tuple[Vector, Vector, Vector]:
        """P_11, P_12, P_22."""
        half, root = self._half, self._scaling[0]
        metric = root @ root.T
        return metric[:half, :half], metric[:half, half:], metric[half:, half:]

    @cached_property
    def _turned(self) -> tuple[Vector, Vector, Vector, Vector]:
        """Coordinates for rows and columns in which H^-1 multiplies an entry by a factor and adds another times its mirror."""
        own, mixed, other = self._blocks
        left, right = np.linalg.cholesky(own), np.linalg.cholesky(other)
        relative = solve_triangular(right, solve_triangular(left, mixed, lower=True).T, lower=True).T
        # 1 - cosine^2 from P^-1, where it is large instead of a difference of almost equal numbers
        across = self._scaling[1][:, : self._half] @ left
        inverse_sines, u = np.linalg.eigh(across.T @ across)
        sines, u = np.minimum(1 / inverse_sines[::-1], 1.0), u[:, ::-1]
        v, triangle = np.linalg.qr(relative.T @ u)
        v = np.where(np.diagonal(triangle) < 0, -v, v)
        cosines = np.sqrt(1 - sines)
        factor = 2 / (np.add.outer(sines, sines) - np.outer(sines, sines))
        identity = np.eye(self._half)
        return (
            u.T @ solve_triangular(left, identity, lower=True),
            v.T @ solve_triangular(right, identity, lower=True),
            factor,
            -np.outer(cosines, cosines) * factor,
        )

    def _right_hand_side(self, target: float, cross: Vector | float) -> Vector:
        """The scaled dX + dZ that brings X Z to the target."""
        missing = np.diag(target - self._values**2) - cross
        return 2 * missing / np.add.outer(self._values, self._values)


@dataclass(frozen=True)
class MatrixStep:
    """dX and dZ in the coordinates where X and Z are the same diagonal matrix."""

    pair: MatrixPair
    scaled_x: Vector
    scaled_z: Vector
    values: Vector
    by_v: Vector

    @property
    def cross(self) -> Vector:
        product = self.scaled_x @ self.scaled_z
        return (product + product.T) / 2

    @cached_property
    def longest(self) -> tuple[float, float]:
        root = 1 / np.sqrt(self.values)
        by_x, by_z = (np.linalg.eigvalsh(scaled * np.outer(root, root)) for scaled in (self.scaled_x, self.scaled_z))
        return longest_step(np.asarray(by_x, dtype=float)), longest_step(np.asarray(by_z, dtype=float))

    def left_over(self, on_y: float, on_v: float) -> float:
        values = np.diag(self.values)
        return float(np.sum((values + on_y * self.scaled_x) * (values + on_v * self.scaled_z)))

    def moved(self, on_y: float, on_v: float) -> MatrixPair:
        return self.pair.moved(on_y * self.scaled_x, on_v * self.by_v)


def minimal_matrix_norm(rows: Constraints, start: Solution, p: float) -> Solution:
    """Minimal nuclear (p = 1) or spectral (p = inf) norm weights for unit rows, from the Euclidean solution."""
    shape = rows.left.shape[1], rows.right.shape[1]
    return minimal_extreme_norm(rows, start, SchattenNorm(p, shape), matrix_pair)


def matrix_pair(y: Vector, v: Vector) -> MatrixPair:
    """A pair with this Y and V, both flattened square matrices, the second one of spectral norm below one."""
    size = round(y.size**0.5)
    left, values, right = np.linalg.svd(y.reshape(size, size))
    raised = values + values.mean()
    above, beside = (left * raised) @ left.T, (right.T * raised) @ right
    corner = y.reshape(size, size)
    return MatrixPair(np.block([[above, corner], [corner.T, beside]]), v.reshape(size, size))


def _symmetric(block: Vector) -> Vector:
    size = len(block)
    matrix = np.zeros((2 * size, 2 * size))
    matrix[:size, size:], matrix[size:, :size] = block, block.T
    return matrix
