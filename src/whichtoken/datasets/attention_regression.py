"""Linear regression whose training tokens are the context of an attention layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from whichtoken.checks import check_choice, check_count, check_range
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]
Rng = np.random.Generator

LAWS: dict[str, Callable[[tuple[int, int], Rng], Array]] = {  # independent coordinates of mean 0 and variance 1
    "gaussian": lambda shape, rng: rng.standard_normal(shape),
    "uniform": lambda shape, rng: rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape),
    "sign": lambda shape, rng: rng.choice([-1.0, 1.0], shape),
    "laplace": lambda shape, rng: rng.laplace(scale=math.sqrt(0.5), size=shape),
    "student": lambda shape, rng: math.sqrt(3.0 / 5.0) * rng.standard_t(5, shape),
}


@dataclass(frozen=True, eq=False)
class RegressionProblem(Shown):
    """One draw: n training pairs, the truth behind them, and more of the same on request.

    `AttentionRegression.sample` gives it; reach for its `draw` to test a trained layer on fresh tokens.

    Attributes
    ----------
    tokens : array of shape (n, d)
        Inputs.
    labels : array of shape (n, outputs)
        Targets, with noise.
    covariance : array of shape (d, d)
        Sigma.
    target : array of shape (outputs, d)
        M.
    mean : array of shape (d,)
        Mean of the tokens.
    noise : float
        Standard deviation of the label noise.
    law : str
        Law of the whitened coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionRegression
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionRegression(dim=3, tokens=50).sample(rng)
    >>> tokens, labels = problem.draw(10, rng)
    >>> bool(np.allclose(labels, tokens @ problem.target.T))  # fresh labels carry no noise
    True
    """

    tokens: Array
    labels: Array
    covariance: Array
    target: Array
    mean: Array
    noise: float
    law: str

    @property
    def whitened_target(self) -> Array:
        """M Sigma^(1/2), (outputs, d)."""
        return np.asarray(self.target @ symmetric_root(self.covariance))

    def draw(self, count: int, rng: Rng) -> tuple[Array, Array]:
        """Fresh tokens (count, d) and their labels without noise (count, outputs)."""
        tokens = _draw_tokens(count, self.law, self.mean, self.covariance, rng)
        return tokens, tokens @ self.target.T


class AttentionRegression:
    """Tokens x of covariance Sigma with labels y = M x + noise.

    Reach for it to test a regression by attention on data whose truth, conditioning and noise you choose.

    The data of Goel, Soltanolkotabi, Bartlett, arXiv 2603.01514; other laws than the Gaussian and a mean that is not zero
    leave its assumptions.

    Parameters
    ----------
    dim : int
        Width d of a token.
    outputs : int, optional
        Width of a label; `dim` by default.
    tokens : int, default=800
        Number n of training pairs.
    covariance, target : float or array
        Sigma (d, d) and M (outputs, d), or their condition number: eigenvalues, or singular values, then fall
        geometrically from 1 to 1/condition in a random basis that is drawn with each sample.
    noise : float, default=0.1
        Standard deviation of the label noise.
    law : str, default="gaussian"
        Law of the whitened coordinates: gaussian, uniform, sign, laplace or student (5 degrees of freedom).
    mean : float or array (d,), default=0.0
        Mean of the tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionRegression
    >>> problem = AttentionRegression(dim=4, outputs=2, tokens=100, covariance=10.0).sample(np.random.default_rng(0))
    >>> problem.tokens.shape, problem.labels.shape, round(float(np.linalg.cond(problem.covariance)), 6)
    ((100, 4), (100, 2), 10.0)
    """

    def __init__(
        self,
        dim: int,
        outputs: int | None = None,
        tokens: int = 800,
        covariance: float | ArrayLike = 1.0,
        target: float | ArrayLike = 1.0,
        noise: float = 0.1,
        law: str = "gaussian",
        mean: float | ArrayLike = 0.0,
    ) -> None:
        self.dim, self.outputs, self.tokens = dim, dim if outputs is None else outputs, tokens
        for field, count in (("dim", dim), ("outputs", self.outputs), ("tokens", tokens)):
            check_count(field, count, 1)
        check_range("noise", noise, 0.0, math.inf, include_low=True)
        check_choice("law", law, LAWS)
        self.covariance = _condition_or_matrix("covariance", covariance, (dim, dim))
        self.target = _condition_or_matrix("target", target, (self.outputs, dim))
        if not isinstance(self.covariance, float):
            check_covariance(self.covariance)
        self.mean = np.full(dim, mean, dtype=np.float64) if np.ndim(mean) == 0 else np.asarray(mean, dtype=np.float64)
        if self.mean.shape != (dim,) or not np.isfinite(self.mean).all():
            raise ValueError(f"mean of shape {self.mean.shape} must be a finite number or vector of shape {(dim,)}")
        self.noise, self.law = noise, law

    def sample(self, rng: Rng) -> RegressionProblem:
        """Draw Sigma and M, unless given, and n training pairs."""
        covariance, target = self.covariance, self.target
        if isinstance(covariance, float):
            basis = _orthogonal(self.dim, rng)
            covariance = (basis * geometric_spectrum(self.dim, covariance)) @ basis.T
        if isinstance(target, float):
            rank = min(self.outputs, self.dim)
            left, right = _orthogonal(self.outputs, rng)[:, :rank], _orthogonal(self.dim, rng)[:, :rank]
            target = (left * geometric_spectrum(rank, target)) @ right.T
        tokens = _draw_tokens(self.tokens, self.law, self.mean, covariance, rng)
        labels = tokens @ target.T + self.noise * rng.standard_normal((self.tokens, self.outputs))
        return RegressionProblem(tokens, labels, covariance, target, self.mean, self.noise, self.law)


def geometric_spectrum(count: int, condition: float) -> Array:
    """`count` values that fall geometrically from 1 to 1/condition."""
    return np.geomspace(1.0, 1.0 / condition, count)


def check_covariance(covariance: Array) -> None:
    """Refuse a matrix that is not symmetric and positive definite."""
    if not np.allclose(covariance, covariance.T, rtol=0.0, atol=1e-10 * np.abs(covariance).max()):
        gap = np.abs(covariance - covariance.T).max()
        raise ValueError(f"covariance must be symmetric, it differs from its transpose by up to {gap:.3g}")
    values = linalg.eigvalsh(covariance)
    if values[0] <= 1e-13 * values[-1]:
        raise ValueError(
            f"covariance is singular or indefinite: eigenvalues from {values[0]:.3g} to {values[-1]:.3g}, all must be positive"
        )


def symmetric_root(covariance: Array) -> Array:
    """Sigma^(1/2), the symmetric one."""
    values, vectors = linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(values)) @ vectors.T)


def _condition_or_matrix(field: str, value: float | ArrayLike, shape: tuple[int, int]) -> float | Array:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        if not 1.0 <= float(array) < math.inf:
            raise ValueError(f"{field}={array} as a condition number must be finite and at least 1")
        return float(array)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{field} of shape {array.shape} must be a finite matrix of shape {shape}")
    return array


def _draw_tokens(count: int, law: str, mean: Array, covariance: Array, rng: Rng) -> Array:
    units = LAWS[law]((count, len(covariance)), rng)
    return np.asarray(mean + units @ symmetric_root(covariance))


def _orthogonal(dim: int, rng: Rng) -> Array:
    """A uniformly distributed orthogonal matrix; the signs of R's diagonal make the QR factor so."""
    q, r = np.linalg.qr(rng.standard_normal((dim, dim)))
    return np.asarray(q * np.sign(np.diag(r)))
