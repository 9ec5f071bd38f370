"""One step on the two whitened factors P (outputs, d) and Q (d, d) of softmax self-attention regression, part by part.

In the long-context limit the layer is the linear map P Q^T. Every function here is equivariant under (P, Q) -> (P/c, cQ).
Goel, Soltanolkotabi, Bartlett, arXiv 2603.01514, name the parts (data-dependent preconditioner, scale-invariant
regulariser, renormalisation, spectral start); the formulas are derived here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from whichtoken.theory.attention_regression import balanced_factors

Array = NDArray[np.float64]
Pair = tuple[Array, Array]

_NEGLIGIBLE = 1e-14  # eigenvalues of a Gram matrix below this share of the largest are rounding


def gram_step(P: Array, Q: Array, P_gradient: Array, Q_gradient: Array, step: float, damping: float) -> Pair:
    """P - eta dP (Q^T Q + delta |Q|_op^2)^(-1) and Q - eta dQ (P^T P + delta |P|_op^2)^(-1), both with the old factors.

    Block Gauss-Newton for the limit: with delta = 0 the error of the map shrinks by 1 - 2 eta in every direction.
    """
    return P - step * P_gradient @ _damped_inverse(Q, damping), Q - step * Q_gradient @ _damped_inverse(P, damping)


def covariance_step(P: Array, Q: Array, P_gradient: Array, Q_gradient: Array, step: float, penalty: float) -> Pair:
    """Gradient descent in whitened coordinates on loss + penalty * balance_penalty, by eta / (|P|_op^2 + |Q|_op^2).

    The factors are first brought to equal norms, where this step size is the right one.
    """
    scale = math.sqrt(float(np.linalg.norm(P) / np.linalg.norm(Q)))
    P, Q, P_gradient, Q_gradient = P / scale, Q * scale, P_gradient * scale, Q_gradient / scale
    if penalty:
        _, P_pull, Q_pull = balance_penalty(P, Q)
        P_gradient, Q_gradient = P_gradient + penalty * P_pull, Q_gradient + penalty * Q_pull
    length = step / float(linalg.svdvals(P)[0] ** 2 + linalg.svdvals(Q)[0] ** 2)
    return (P - length * P_gradient) * scale, (Q - length * Q_gradient) / scale


def balance_penalty(P: Array, Q: Array) -> tuple[float, Array, Array]:
    """1/4 |P^T P / tau - tau Q^T Q|_F^2 with tau = |P|_F/|Q|_F, and its gradients in P and Q.

    The same for (cP, Q/c), and zero exactly for balanced factors.
    """
    first, second = float(np.linalg.norm(P)), float(np.linalg.norm(Q))
    tau = first / second
    P_gram, Q_gram = P.T @ P, Q.T @ Q
    gap = P_gram / tau - tau * Q_gram
    by_tau = -(float(np.sum(P_gram**2)) / tau**2 - tau**2 * float(np.sum(Q_gram**2))) / (2.0 * tau)
    P_gradient = P @ gap / tau + by_tau / (first * second) * P
    Q_gradient = -tau * Q @ gap - by_tau * tau / second**2 * Q
    return 0.25 * float(np.sum(gap**2)), P_gradient, Q_gradient


def balance_exactly(P: Array, Q: Array) -> Pair:
    """The balanced pair of the same map P Q^T and the same |P|_F/|Q|_F that is nearest to (P, Q)."""
    scale = math.sqrt(float(np.linalg.norm(P) / np.linalg.norm(Q)))
    P_balanced, Q_balanced = balanced_factors(P @ Q.T)
    left, _, right = linalg.svd(P_balanced.T @ P / scale + Q_balanced.T @ Q * scale)
    rotation = left @ right
    return P_balanced @ rotation * scale, Q_balanced @ rotation / scale


def renormalise(P: Array, Q: Array, logit_norm: float, logit_cap: float) -> Pair:
    """The pair (P/c, cQ) with |Q|_F = logit_norm, or less where |Q|_op would exceed logit_cap."""
    scale = min(logit_norm / float(np.linalg.norm(Q)), logit_cap / float(linalg.svdvals(Q)[0]))
    return P / scale, Q * scale


def noise_damping(loss: float, outputs: int, dim: int, samples: float, map_norm: float) -> float:
    """Relative size of the noise in an estimate of the map from n pairs: sqrt(2F/m) (sqrt d + sqrt m) / (sqrt n |P Q^T|_op).

    Directions of the map weaker than this cannot be estimated, and undamped Gram matrices would amplify their noise.
    """
    return math.sqrt(2.0 * loss / outputs) * (math.sqrt(dim) + math.sqrt(outputs)) / (math.sqrt(samples) * map_norm)


def _damped_inverse(factor: Array, damping: float) -> Array:
    """(F^T F + delta |F|_op^2)^(-1); with delta = 0 the pseudo-inverse."""
    values, vectors = linalg.eigh(factor.T @ factor)
    damped = np.maximum(values, 0.0) + damping * values[-1]
    inverse = np.where(damped > _NEGLIGIBLE * values[-1], 1.0 / np.maximum(damped, _NEGLIGIBLE * values[-1]), 0.0)
    result: Array = (vectors * inverse) @ vectors.T
    return result
