"""Coordinates in which tokens have covariance I, and the way there and back for tokens and attention factors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from whichtoken.datasets.attention_regression import check_covariance
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]

RIDGE = 1e-8  # added to the correlations, so that constant and collinear coordinates can be whitened
ROUNDING = 1e-14  # share of its largest entry by which a constant coordinate may seem to vary
TOKENS_PER_DIM = 3  # fewer, and the sample covariance is shrunk


class ShrinkageWarning(UserWarning):
    """Too few tokens for a sample covariance: it was shrunk toward its diagonal."""


@dataclass(frozen=True, eq=False)
class Whitening(Shown):
    """z = S^(-1/2) (x - mean), P = A S^(1/2), Q = S^(1/2) B S^(1/2); outputs of the layer are the same in both."""

    mean: Array  # (d,)
    root: Array  # (d, d), S^(1/2)
    inverse_root: Array  # (d, d), S^(-1/2)

    @classmethod
    def from_covariance(cls, covariance: ArrayLike) -> Whitening:
        """Of a known covariance (d, d), about zero."""
        matrix = np.asarray(covariance, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
            raise ValueError(f"covariance of shape {matrix.shape} must be a finite square matrix")
        check_covariance(matrix)
        values, vectors = linalg.eigh(matrix)
        return cls(
            np.zeros(len(matrix)), (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
        )

    @classmethod
    def from_tokens(cls, tokens: ArrayLike, center: bool = True) -> Whitening:
        """Of the second moment of tokens (n, d), about their mean or about zero; shrunk, with a warning, if n < 3 d."""
        X = np.asarray(tokens, dtype=np.float64)
        if X.ndim != 2 or len(X) < 2 or not np.isfinite(X).all():
            raise ValueError(f"tokens of shape {X.shape} must be a finite matrix (n, d) of at least 2 rows")
        count, dim = X.shape
        mean = X.mean(axis=0) if center else np.zeros(dim)
        variances = np.mean((X - mean) ** 2, axis=0)
        constant = variances <= (ROUNDING * np.abs(X).max(axis=0)) ** 2
        if constant.all():
            raise ValueError("tokens must not all be equal")
        scales = np.sqrt(np.where(constant, variances.mean(), variances))
        standard = (X - mean) / scales
        weight = RIDGE
        if count < TOKENS_PER_DIM * dim:
            from sklearn.covariance import ledoit_wolf_shrinkage

            weight = max(RIDGE, float(ledoit_wolf_shrinkage(standard, assume_centered=True)))
            warnings.warn(
                f"{count} tokens are few for dim={dim}: their covariance is shrunk by {weight:.2g} (Ledoit-Wolf);"
                f" {TOKENS_PER_DIM * dim} tokens need no shrinkage",
                ShrinkageWarning,
                stacklevel=2,
            )
        values, vectors = linalg.eigh((1.0 - weight) * standard.T @ standard / count + weight * np.eye(dim))
        # S = F F^T is not formed: its condition number is the square of that of F, which units may make 1e8
        left, sizes, _ = linalg.svd(scales[:, None] * vectors * np.sqrt(values))
        return cls(mean, (left * sizes) @ left.T, (left / sizes) @ left.T)

    def whiten(self, tokens: ArrayLike) -> Array:
        """z (n, d) of tokens x (n, d)."""
        X = np.asarray(tokens, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != len(self.mean):
            raise ValueError(f"tokens of shape {X.shape} must have shape (n, {len(self.mean)})")
        return np.asarray((X - self.mean) @ self.inverse_root)

    def to_whitened(self, value: Array, key_query: Array) -> tuple[Array, Array]:
        """(P, Q) of (A, B)."""
        return value @ self.root, self.root @ key_query @ self.root

    def to_raw(self, value: Array, key_query: Array) -> tuple[Array, Array]:
        """(A, B) of (P, Q)."""
        return value @ self.inverse_root, self.inverse_root @ key_query @ self.inverse_root
