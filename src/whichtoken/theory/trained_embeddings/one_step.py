"""The first gradient step: what Lemma 2 says of it, what it really does, and what lies between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.checks import check_range
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import Vector, attend, signed_frequency

# what the package does not export itself
__all__ = ["OneStepDeviation", "first_step", "ideal_first_step"]


@dataclass(frozen=True, eq=False)
class OneStepDeviation(Shown):
    """How far the first step is from its law E_s + (lr/2) alpha_s v, p unchanged; all lengths are per unit of lr.

    Attributes
    ----------
    relative : float
        Frobenius norm of all err_s, divided by that of (1/2) alpha v^T.
    per_token : array of shape (|S|,)
        |err_s| / lr.
    cls : float
        |err_p| / lr, the length of the gradient with respect to p.
    along_value, along_cls : array of shape (|S|,)
        err_s / lr = along_value_s v + along_cls_s p.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import one_step_error
    >>> E, p, v = np.eye(3)[:2], np.zeros(3), np.array([0.0, 0.0, 1.0])
    >>> one_step_error(E, p, v, counts=[[1, 0], [0, 1]], labels=[1, -1]).relative  # exact for these orthogonal vectors
    0.0
    """

    relative: float
    per_token: Vector
    cls: float
    along_value: Vector
    along_cls: Vector


def one_step_error(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike
) -> OneStepDeviation:
    """The error terms of Lemma 2, in closed form.

    With dE_s = A_s v + B_s p (Lemma 7) the first step of gradient descent leaves err_s / lr = (-A_s - alpha_s/2) v - B_s p
    and err_p / lr = -E^T B. Nothing of size |S| x d is formed: the scores and E^T B are products with E.

    Parameters
    ----------
    embeddings : array_like of shape (|S|, d)
        E, one row per token.
    cls, value : array_like of shape (d,)
        p and v; v need not have unit norm.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    OneStepDeviation
        Lengths of the error terms, over all tokens and for each.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import one_step_error
    >>> counts, labels = [[2, 0, 1], [0, 2, 1]], [1, -1]
    >>> def relative(dim):
    ...     rng = np.random.default_rng(0)
    ...     E, (p, v) = rng.standard_normal((3, dim)) / dim**0.5, rng.standard_normal((2, dim)) / dim**0.5
    ...     return one_step_error(E, p, v, counts, labels).relative
    >>> relative(10_000) < relative(100)  # the law is that of large dimension
    True
    """
    E, p, v = as_parameters(embeddings, cls, value)
    along_value, along_cls = attend(E @ p, E @ v, counts, labels).gradients()
    alpha = signed_frequency(counts, labels)
    along_value = -along_value - alpha / 2
    # |first_s v + second_s p|^2 for every s, from three inner products
    first, second = along_value, -along_cls
    squares = np.maximum(first**2 * (v @ v) + 2 * first * second * (v @ p) + second**2 * (p @ p), 0.0)
    law = float(np.linalg.norm(alpha) / 2 * np.linalg.norm(v))
    relative = float(np.sqrt(squares.sum())) / law if law > 0 else np.inf
    return OneStepDeviation(relative, np.sqrt(squares), float(np.linalg.norm(along_cls @ E)), along_value, -along_cls)


def first_step(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike, lr: float
) -> tuple[Vector, Vector]:
    """E^1 (|S|, d) and p^1 (d,) after one step of gradient descent on all embeddings, equation (4); v stays fixed.

    Parameters
    ----------
    embeddings : array_like of shape (|S|, d)
        E^0, one row per token.
    cls, value : array_like of shape (d,)
        p^0 and v.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    lr : float
        Step size.

    Returns
    -------
    tuple of array
        E^1 and p^1.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.one_step import first_step
    >>> E, p, v = np.zeros((2, 2)), np.zeros(2), np.array([1.0, 0.0])
    >>> moved, _ = first_step(E, p, v, counts=[[1, 0], [0, 1]], labels=[1, -1], lr=1.0)
    >>> moved.tolist()  # the token of the positive sequence moves along v, the other one against it
    [[0.25, 0.0], [-0.25, 0.0]]
    """
    check_range("lr", lr, 0.0, math.inf, include_low=True)
    E, p, v = as_parameters(embeddings, cls, value)
    along_value, along_cls = attend(E @ p, E @ v, counts, labels).gradients()
    return E - lr * (np.outer(along_value, v) + np.outer(along_cls, p)), p - lr * (along_cls @ E)


def ideal_first_step(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike, lr: float
) -> tuple[Vector, Vector]:
    """The first step without its error terms: E^0 + (lr/2) alpha v^T and p^0, the limit d -> infinity of Lemma 2.

    Parameters
    ----------
    embeddings, cls, value, counts, labels, lr : as in `first_step`
        Start of the model, data and step size.

    Returns
    -------
    tuple of array
        E^1 and p^1, of which p^1 is p^0.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.one_step import ideal_first_step
    >>> E, p, v = np.zeros((2, 2)), np.ones(2), np.array([1.0, 0.0])
    >>> moved, same = ideal_first_step(E, p, v, counts=[[1, 0], [0, 1]], labels=[1, -1], lr=1.0)
    >>> moved.tolist(), same.tolist()
    ([[0.25, 0.0], [-0.25, 0.0]], [1.0, 1.0])
    """
    check_range("lr", lr, 0.0, math.inf, include_low=True)
    E, p, v = as_parameters(embeddings, cls, value)
    return E + lr / 2 * np.outer(signed_frequency(counts, labels), v), p


def as_parameters(embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike) -> tuple[Vector, Vector, Vector]:
    """E (|S|, d), p (d,) and v (d,) as float64, refused if they do not fit together."""
    E, p, v = (np.asarray(x, dtype=np.float64) for x in (embeddings, cls, value))
    if E.ndim != 2:
        raise ValueError(f"embeddings of shape {E.shape} must have two axes, tokens and dimensions")
    for name, x in (("embeddings", E), ("cls", p), ("value", v)):
        if x.shape[-1:] != E.shape[1:] or (x is not E and x.ndim != 1):
            raise ValueError(f"{name} of shape {x.shape} must have shape ({E.shape[1]},), the width of the embeddings")
        if not np.isfinite(x).all():
            raise ValueError(f"{name} must hold finite numbers")
    return E, p, v
