"""What of Theorem 5 holds on your data: which hypothesis fails, where, and which step and dimension would do in practice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from whichtoken.checks import check_count, check_range
from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import attend
from whichtoken.theory.trained_embeddings.bounds import Requirements, first_margins, theorem_requirements
from whichtoken.theory.trained_embeddings.conditions import OneRelevantToken, loss_limit, one_relevant_token
from whichtoken.theory.trained_embeddings.one_step import first_step

Vector = NDArray[np.float64]
DRAWS = 8  # random starts that must all do
LARGEST = 2**40  # dimension to give up at
ROOM = 2.0  # at least_lr itself the loss reaches its limit in infinite dimension only


@dataclass(frozen=True, eq=False)
class TheoremExplanation(Shown):
    """Theorem 5 on a data set, at a dimension and a first step.

    Attributes
    ----------
    assumption : OneRelevantToken
        Whether every sequence has one relevant token.
    requirements : Requirements
        What equation (10) asks for.
    weakest : int
        The sequence that gains least by the first step; it decides how large the step must be.
    least_lr : float
        Smallest first step after which, in the limit of infinite dimension, no relevant token can be lost; inf if none.
    share : float
        Share of random starts at this dimension and step from which no relevant token can be lost.
    least_dim : int or None
        Smallest power of two as dimension at which that holds for all starts drawn, at this step or, if that is too small, at
        twice `least_lr`; None if none was found.
    failed : tuple of str
        The hypotheses that fail, each in one sentence.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import explain_theorem
    >>> found = explain_theorem([[1, 0, 1], [0, 1, 1]], [1, -1], dim=64, lr=1.0)
    >>> found.failed[0]
    'lr=1 is below the 64 of equation (10)'
    """

    assumption: OneRelevantToken
    requirements: Requirements
    weakest: int
    least_lr: float
    share: float
    least_dim: int | None
    failed: tuple[str, ...]


def explain_theorem(
    counts: Any, labels: ArrayLike, dim: int, lr: float, *, rng: np.random.Generator | None = None
) -> TheoremExplanation:
    """Say which hypothesis of Theorem 5 fails, on which sequence, and which step and dimension would do in practice.

    In practice means: the loss after the first step is below `loss_limit`, from which on the flow cannot lose a relevant token,
    whatever the dimension that equation (10) asks for.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    dim : int
        d, width of the embeddings.
    lr : float
        Size of the first step.
    rng : numpy.random.Generator, optional
        Draws the starts; a fixed one by default.

    Returns
    -------
    TheoremExplanation
        What fails, and what would do.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import explain_theorem
    >>> found = explain_theorem([[1, 0, 1], [0, 1, 1]], [1, -1], dim=4096, lr=40.0)
    >>> found.share, found.least_lr < 40, found.least_dim <= 4096  # in practice it holds, by equation (10) it does not
    (1.0, True, True)
    """
    check_count("dim", dim, 1)
    check_range("lr", lr, 0.0, math.inf)
    rng = np.random.default_rng(0) if rng is None else rng
    counts, signs = as_counts(counts), as_signs(labels)
    n, length = counts.shape[0], int(np.max(counts.sum(axis=1)))
    assumption = one_relevant_token(counts, signs)
    needed = theorem_requirements(n, length, counts.shape[1], lr=lr)
    margins = first_margins(counts, signs)
    weakest, least_lr = int(np.argmin(margins)), _least_lr(margins)
    share = _share(counts, signs, dim, lr, rng)
    least_dim = _least_dim(counts, signs, max(lr, ROOM * least_lr), rng) if math.isfinite(least_lr) else None
    failed = []
    if lr < needed.lr:
        failed.append(f"lr={lr:g} is below the {needed.lr:g} of equation (10)")
    if math.log10(dim) < needed.log10_dim:
        failed.append(f"dim={dim} is below the 10^{needed.log10_dim:.1f} of equation (10)")
    if not assumption.holds:
        failed.append(assumption.sentence)
    if lr < least_lr:
        failed.append(
            f"after a step of {lr:g} sequence {weakest} (label {int(signs[weakest]):+d}) has a margin of "
            f"{lr * margins[weakest]:.3g} only, and a relevant token may be lost even in the limit of infinite dimension"
        )
    elif share < 1:
        failed.append(f"at dim={dim} a relevant token may be lost from {1 - share:.0%} of the random starts")
    return TheoremExplanation(assumption, needed, weakest, least_lr, share, least_dim, tuple(failed))


def lost_label(scores: ArrayLike, values: ArrayLike, counts: Any, labels: ArrayLike) -> int:
    """Which label loses its tokens if one does: the one against which p starts to move along v.

    d(p.v)/dt = mean over X of y sigma(-y f) Var_q(g), with the variance of the values under attention. If it is positive, p
    grows along v, which lifts the tokens of label +1 and lowers those of label -1.

    Parameters
    ----------
    scores, values : array_like of shape (|S|,)
        a_s and g_s of every token after the first step.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    int
        -1 or +1; 0 if p does not move along v.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import lost_label
    >>> lost_label([1.0, 0.0, 0.0], [2.0, -2.0, 0.0], [[1, 0, 1], [0, 1, 1]], [1, -1])
    1
    """
    seen = attend(scores, values, counts, labels)
    _, along_cls = seen.gradients()
    return int(np.sign(along_cls @ seen.values))


def _least_lr(margins: Vector) -> float:
    """Where the sum of log(1 + exp(-lr margin)) falls below log 2, the limit for values of 0."""
    if margins.min() <= 0:
        return math.inf

    def excess(lr: float) -> float:
        return float(np.logaddexp(0.0, -lr * margins).sum() - math.log(2))

    highest = 1.0
    while excess(highest) > 0:
        highest *= 2
    return float(brentq(excess, 0.0, highest)) if excess(0.0) > 0 else 0.0


def _share(counts: Any, signs: Any, dim: int, lr: float, rng: np.random.Generator) -> float:
    """Share of random starts whose loss after the step is below the limit."""
    safe = 0
    for _ in range(DRAWS):
        E, p, v = _random_start(counts.shape[1], dim, rng)
        E, p = first_step(E, p, v, counts, signs, lr)
        values = E @ v
        safe += bool(attend(E @ p, values, counts, signs).losses.mean() < loss_limit(values, counts, signs))
    return safe / DRAWS


def _random_start(tokens: int, dim: int, rng: np.random.Generator) -> tuple[Vector, Vector, Vector]:
    """E_s and p from N(0, I/d) and a unit v, turned into as few coordinates as they span: only inner products matter.

    In many dimensions the triangle of their QR decomposition is drawn directly (Bartlett).
    """
    size = tokens + 2
    if dim <= size:
        rows = rng.standard_normal((size, dim)) / math.sqrt(dim)
    else:
        rows = np.tril(rng.standard_normal((size, size)), -1) / math.sqrt(dim)
        np.fill_diagonal(rows, np.sqrt(rng.chisquare(dim - np.arange(size)) / dim))
    return rows[:tokens], rows[-2], rows[-1] / np.linalg.norm(rows[-1])


def _least_dim(counts: Any, signs: Any, lr: float, rng: np.random.Generator) -> int | None:
    dim = 2
    while dim <= LARGEST:
        if _share(counts, signs, dim, lr, rng) == 1:
            return dim
        dim *= 2
    return None
