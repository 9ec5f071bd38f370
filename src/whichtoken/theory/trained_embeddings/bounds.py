"""The paper's bounds, evaluated at the user's sizes: how large they are, and how large an embedding they ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from whichtoken.attention.losses import log_logistic
from whichtoken.checks import check_count, check_range
from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import stored_rows
from whichtoken.theory.trained_embeddings.frequencies import signed_frequency

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class OneStepBounds(Shown):
    """Upper bounds that hold with high probability after one step of size lr, for d >= max(256, (2 log(|S|^2/delta))^2).

    Attributes
    ----------
    error : float
        Bound on |err_s| and |err_p|: 11 lr d^(-1/4) (Lemma 2).
    embedding_norm : float
        Bound on |E_s^1|: 2 (1 + 2 lr) (Lemma 11).
    cls_norm : float
        Bound on |p^1|: 2 + 11 lr d^(-1/4) (Lemma 11).

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import one_step_bounds
    >>> bounds = one_step_bounds(lr=0.1, dim=10_000)
    >>> round(bounds.error, 4), round(bounds.embedding_norm, 4), round(bounds.cls_norm, 4)
    (0.11, 2.4, 2.11)
    """

    error: float
    embedding_norm: float
    cls_norm: float


def one_step_bounds(lr: float, dim: int) -> OneStepBounds:
    """Lemmas 2 and 11 at a step size and a dimension.

    Parameters
    ----------
    lr : float
        Size of the first step.
    dim : int
        d, width of the embeddings.

    Returns
    -------
    OneStepBounds
        Bounds on errors and norms after the step.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import one_step_bounds
    >>> one_step_bounds(lr=0.1, dim=10_000).error < one_step_bounds(lr=0.1, dim=100).error
    True
    """
    check_range("lr", lr, 0.0, math.inf)
    check_count("dim", dim, 1)
    error = 11 * lr * dim**-0.25
    return OneStepBounds(error, 2 * (1 + 2 * lr), 2 + error)


def loss_bound(counts: Any, labels: ArrayLike, lr: float) -> float:
    """Upper bound on the loss after one step (Lemma 12), with y alpha averaged over each sequence's own length.

    E[log(1 + exp(-(lr/2) mean_i y alpha_{x_i} + 1 / (22 lr)))]; it asks for d >= (88 lr^2 + 111 lr + 2)^8.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    lr : float
        Size of the first step.

    Returns
    -------
    float
        Bound on the mean logistic loss.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import loss_bound
    >>> counts, labels = [[1, 0], [0, 1]], [1, -1]
    >>> loss_bound(counts, labels, lr=20.0) < loss_bound(counts, labels, lr=5.0)
    True
    """
    return math.exp(log_loss_bound(counts, labels, lr))


def log_loss_bound(counts: Any, labels: ArrayLike, lr: float) -> float:
    """Logarithm of `loss_bound`, which underflows at the step size of the theorem."""
    check_range("lr", lr, 0.0, math.inf)
    margins = lr * first_margins(counts, labels) - 1 / (22 * lr)
    logs = [log_logistic(margin) for margin in margins]
    return float(logsumexp(logs)) - math.log(len(logs))


def first_margins(counts: Any, labels: ArrayLike) -> Vector:
    """y f(X) / lr after a first step without errors, in the limit of infinite dimension: half the mean of y alpha, (n,)."""
    counts, signs = as_counts(counts), as_signs(labels)
    alpha, rows = signed_frequency(counts, signs), stored_rows(counts)
    lengths = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    means: Vector = np.bincount(rows, counts.data * alpha[counts.indices], minlength=len(signs)) / lengths
    return signs * means / 2


@dataclass(frozen=True)
class Requirements(Shown):
    """What a theorem asks for. Dimensions are given as log10, because they leave the range of numbers.

    Attributes
    ----------
    lr : float
        Smallest first step, 4 n^2 T^2.
    log10_dim : float
        Smallest dimension at the step size asked about.
    terms : dict
        Log10 of each lower bound on the dimension.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import theorem_requirements
    >>> needed = theorem_requirements(sequences=100, length=10, vocabulary=50)
    >>> needed.lr > 0, needed.log10_dim > 6  # dimensions beyond any that is used
    (True, True)
    """

    lr: float
    log10_dim: float
    terms: dict[str, float]

    def met(self, lr: float, dim: int) -> bool:
        """Whether a step and a dimension satisfy all of it."""
        return lr >= self.lr and math.log10(dim) >= self.log10_dim


def theorem_requirements(
    sequences: int, length: int, vocabulary: int, *, lr: float | None = None, failure: float = 0.05
) -> Requirements:
    """Equation (10) of Theorem 5 at these sizes.

    Parameters
    ----------
    sequences, length, vocabulary : int
        n, T and |S|.
    lr : float, optional
        The first step that the dimension is for; by default the smallest.
    failure : float, default=0.05
        delta, the probability with which the theorem may fail.

    Returns
    -------
    Requirements
        Least step size and dimension.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import theorem_requirements
    >>> few, many = (theorem_requirements(n, length=10, vocabulary=50) for n in (10, 1000))
    >>> few.lr <= many.lr, few.log10_dim < many.log10_dim
    (True, True)
    """
    smallest = _smallest_step(sequences, length)
    step = smallest if lr is None else lr
    check_range("lr", step, 0.0, math.inf)
    check_count("vocabulary", vocabulary, 1)
    check_range("failure", failure, 0.0, 1.0)
    terms = {
        "256": math.log10(256),
        "(2 log(|S|^2/delta))^2": 2 * math.log10(2 * math.log(vocabulary**2 / failure)),
        "(88 lr^2 + 111 lr + 2)^8": 8 * math.log10(88 * step**2 + 111 * step + 2),
        "|S| + 3": math.log10(vocabulary + 3),
    }
    return Requirements(smallest, max(terms.values()), terms)


def unique_selection_requirements(
    sequences: int, length: int, vocabulary: int, advantage: float, *, lr: float | None = None, failure: float = 0.05
) -> Requirements:
    """Theorem 5's requirements and those of Lemma 19, for |p-hat| < (1 - advantage) |p-hat'|; its 44 n is taken as stated.

    Parameters
    ----------
    sequences, length, vocabulary : int
        n, T and |S|.
    advantage : float
        Between 0 and 1: the norm of the selection is below 1 - advantage times that of every rival.
    lr : float, optional
        The first step that the dimension is for; by default the smallest.
    failure : float, default=0.05
        delta, the probability with which the theorem may fail.

    Returns
    -------
    Requirements
        Least step size and dimension.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import theorem_requirements, unique_selection_requirements
    >>> alone = theorem_requirements(100, 10, 50)
    >>> both = unique_selection_requirements(100, 10, 50, advantage=0.1)
    >>> both.log10_dim >= alone.log10_dim
    True
    """
    base = theorem_requirements(sequences, length, vocabulary, lr=lr, failure=failure)
    check_range("advantage", advantage, 0.0, 1.0)
    step = base.lr if lr is None else lr
    spread = math.sqrt(2 * math.log(vocabulary**2 / failure))
    terms = base.terms | {
        "(2816 T n^2 (1 + 2 lr) / mu)^4": 4 * math.log10(2816 * length * sequences**2 * (1 + 2 * step) / advantage),
        "(2 lr (n sqrt(2 log(|S|^2/delta)) + 44 n))^4": 4 * math.log10(2 * step * sequences * (spread + 44)),
    }
    return Requirements(base.lr, max(terms.values()), terms)


def _smallest_step(sequences: int, length: int) -> float:
    check_count("sequences", sequences, 1)
    check_count("length", length, 1)
    return 4.0 * sequences**2 * length**2
