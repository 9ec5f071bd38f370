"""How much each group matters: attention that looks at positions only, or the one-layer transformer itself.

All functions take standardised variables of each group, a list of (n, d_j) arrays, and labels of -1 and +1, and return
attention over the groups, (D,), which sums to one. `fixed` (n, c) are covariates with a readout of their own, `shares` (n,)
the weights of the samples, which sum to one.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax

from whichtoken.data.positional_encodings import positional_encodings
from whichtoken.models.group_gradient import logistic_loss_and_gradient
from whichtoken.theory.group_sparse import default_learning_rate
from whichtoken.training.convex_head import logistic_heads

Array = NDArray[np.float64]

PRUNED = 1e-3  # attention below which a group is out
ROUNDS = 8
STEPS = 200


def shared_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """One value vector v for all groups: score = sum_j s_j <v, x_j> + <u, c> + b with s a softmax of free scores.

    The position-only form of the transformer of Zhang, Meng, Cao (arXiv 2504.08638), d + D numbers. The start is the best
    rank-one approximation of the correlations of groups and label, where gradient descent from zero goes first.
    """
    X = np.stack(groups, axis=1)  # (n, D, d)
    count = X.shape[1]
    covariance = np.tensordot(shares * (signs - shares @ signs), X, axes=1)  # (D, d)
    left, _, right = np.linalg.svd(covariance, full_matrices=False)
    value = right[0] * np.sign(left[:, 0].sum() or 1.0)
    side = np.abs(left[:, 0])
    starts = [np.zeros(count), np.log(side + 0.1 * side.max())]
    found = [_descend(X, fixed, signs, shares, ridge, (logits, value)) for logits in starts]
    return min(found, key=lambda pair: pair[0])[1]


def _descend(
    X: Array, fixed: Array, signs: Array, shares: Array, ridge: float, start: tuple[Array, Array]
) -> tuple[float, Array]:
    """Objective and attention after L-BFGS on scores, value vector, covariates and bias together."""
    (logits, value), (_, count, width) = start, X.shape
    ends = np.cumsum([count, width, fixed.shape[1]])

    def objective(packed: Array) -> tuple[float, Array]:
        scores, v, u, (bias,) = np.split(packed, ends)
        attention = softmax(scores)
        values = X @ v  # (n, D)
        mean = values @ attention
        margins = signs * (mean + fixed @ u + bias)
        slopes = -signs * expit(-margins) * shares
        received = slopes @ values  # (D,)
        gradient = np.concatenate(
            [
                attention * (received - slopes @ mean),
                np.tensordot(slopes, np.tensordot(X, attention, axes=(1, 0)), axes=1) + ridge * v,
                fixed.T @ slopes + ridge * u,
                [slopes.sum()],
            ]
        )
        return float(shares @ np.logaddexp(0, -margins) + ridge / 2 * (v @ v + u @ u)), gradient

    first = np.concatenate([logits, 0.1 * value, np.zeros(fixed.shape[1] + 1)])
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return float(found.fun), softmax(found.x[:count])


def separate_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """A value vector for each group: score = sum_j s_j <v_j, x_j> + <u, c> + b.

    Given the products beta_j = s_j v_j, the attention of least ridge sum |v_j|^2 is s_j ~ |beta_j|^(2/3), so the readout
    and the attention are solved in turn. What is minimised is a penalty (sum_j |beta_j|^(2/3))^3, sparser than the group lasso.
    Groups of more variables need proportionally more: lengths are divided by sqrt(d_j).
    """
    attention = np.full(len(groups), 1 / len(groups))
    for _ in range(ROUNDS):
        alive = np.flatnonzero(attention > PRUNED * attention.max())
        features = np.hstack([*(attention[j] * len(groups) * groups[j] for j in alive), fixed])
        readout = logistic_heads(features, signs, (ridge,), shares)[0].readout
        parts = np.split(readout, np.cumsum([groups[j].shape[1] for j in alive]))
        lengths = np.zeros(len(groups))
        for j, part in zip(alive, parts, strict=False):  # the last part belongs to the covariates
            lengths[j] = attention[j] * np.linalg.norm(part) / np.sqrt(len(part))
        if not lengths.any():
            break
        attention = lengths ** (2 / 3)
        attention /= attention.sum()
    return attention


def full_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """Mean attention of the whole one-layer transformer, whose scores also depend on the variables.

    Trained from zero by gradient descent, where ridge and weights have no place; shorter groups are filled up with zeros,
    and covariates, which are no tokens, are left to the readout.
    """
    if len(groups) == 1:
        return np.ones(1)
    width = max(group.shape[1] for group in groups)
    X = np.stack([np.pad(group, ((0, 0), (0, width - group.shape[1]))) for group in groups], axis=1)
    encodings = positional_encodings("sine", len(groups))
    W, v = np.zeros((width + len(groups),) * 2), np.zeros(width + len(groups))
    lr, threads = default_learning_rate(groups=len(groups)), get_num_threads()
    for _ in range(STEPS):
        _, W_gradient, v_gradient = logistic_loss_and_gradient(X, signs, encodings, W, v, threads)
        W -= lr * W_gradient
        v -= lr * v_gradient
    positions = np.broadcast_to(encodings, (len(X), *encodings.shape))
    tokens = np.concatenate([X, positions], axis=2)  # (n, groups, width + groups)
    weights = softmax(tokens @ W @ tokens.mT, axis=1)  # (n, keys, queries)
    received: Array = weights.mean(axis=(0, 2))
    return received
