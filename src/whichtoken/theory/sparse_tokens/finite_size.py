"""Exact test error of a given classifier at finite dimension: no test set, no limit.

Rotation invariance leaves only overlaps: a readout sees the feature law of its query and Gaussian noise, whatever the
dimension (Barnfield, Cui, Lu, arXiv 2509.25153, reduction of section 4).
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from whichtoken.datasets.sparse_tokens import Task, draw_positions
from whichtoken.theory.sparse_tokens.feature_law import attention_law

Array = NDArray[np.float64]

MAX_PLACEMENTS = 20_000


def exact_error(
    readout: ArrayLike,
    bias: float,
    signal: ArrayLike,
    *,
    query: ArrayLike | None = None,
    inverse_temperature: float = 1.0,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    points: int = 1 << 14,
) -> float:
    """Probability that sign(<readout, feature> + bias) is wrong, for attention pooling or (no query) mean pooling.

    Parameters
    ----------
    readout, bias, signal : array_like, float, array_like
        Weights (d,) and bias of the classifier; the hidden direction (d,), which is scaled to unit norm.
    query : array_like of shape (d,), optional
        Attention query; mean pooling without one.
    inverse_temperature : float, default=1.0
        beta inside the softmax, not multiplied by the norm of the query.
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    points : int, default=16384
        Sobol points per class, a power of two; 16384 leave a relative error of about 1e-3.

    Returns
    -------
    float
        Probability of a wrong label.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import exact_error
    >>> task = dict(length=10, signal_tokens=1, strength=5.0, prevalence=0.5)
    >>> signal = [1.0, 0.0, 0.0]
    >>> mean = exact_error(signal, -0.25, signal, **task)  # the mean token, cut half way between the classes
    >>> attended = exact_error(signal, -2.5, signal, query=signal, inverse_temperature=3.0, **task)
    >>> attended < mean
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    w, xi = np.asarray(readout, dtype=float), _unit(signal)
    if not w.any():
        return _constant_error(bias, prevalence)
    q = np.zeros_like(xi) if query is None else np.asarray(query, dtype=float)
    norm = float(np.linalg.norm(q))
    along = q / norm if norm > 0 else xi  # mean pooling looks alike from everywhere
    alignment = float(np.clip(along @ xi, -1.0, 1.0))
    across = xi - alignment * along
    om, off_query = float(w @ along), math.sqrt(max(0.0, 1 - alignment**2))
    m = float(w @ across) / off_query if off_query > 1e-12 else 0.0
    law = attention_law(task, alignment, norm * inverse_temperature, points)
    return law.error(om, m, bias, max(float(w @ w) - om**2, 0.0))


def exact_error_vectorized(
    weights: ArrayLike,
    bias: float,
    signal: ArrayLike,
    *,
    signal_tokens: int,
    strength: float,
    prevalence: float,
) -> float:
    """Probability that sign(<weights, tokens> + bias) is wrong, for weights (L, d).

    The mean over placements of the signal is exact up to 20000 placements, and an average over that many draws beyond.

    Parameters
    ----------
    weights : array_like of shape (L, d)
        One weight per position and coordinate.
    bias : float
        Bias of the classifier.
    signal : array_like of shape (d,)
        Hidden direction, scaled to unit norm.
    signal_tokens, strength, prevalence : int, float, float
        The task, as in `Task`.

    Returns
    -------
    float
        Probability of a wrong label.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.sparse_tokens import exact_error_vectorized, linear_oracle
    >>> task = dict(signal_tokens=1, strength=4.0, prevalence=0.5)
    >>> weights = np.outer(np.ones(4), [1.0, 0.0])  # the same on all four positions
    >>> error = exact_error_vectorized(weights, bias=-2.0, signal=[1.0, 0.0], **task)
    >>> abs(error - linear_oracle(length=4, **task)) < 1e-9
    True
    """
    W, xi = np.asarray(weights, dtype=float), _unit(signal)
    task = Task(W.shape[0], signal_tokens, strength, prevalence)
    if not W.any():
        return _constant_error(bias, prevalence)
    gain = strength * (W @ xi)  # (L,)
    placements = _placements(task)
    norm = np.linalg.norm(W)
    miss = np.full(len(placements), 1 / len(placements)) @ ndtr(-(gain[placements].sum(axis=1) + bias) / norm)
    return float(prevalence * miss + (1 - prevalence) * ndtr(bias / norm))


def _unit(signal: ArrayLike) -> Array:
    xi = np.asarray(signal, dtype=float)
    norm = np.linalg.norm(xi)
    if not 0 < norm < math.inf:
        raise ValueError(f"signal of shape {xi.shape} must be a finite non-zero vector")
    return np.asarray(xi / norm)


def _constant_error(bias: float, prevalence: float) -> float:
    """Error of a score that is the bias alone; a bias of zero decides at random."""
    return 0.5 if bias == 0 else 1 - prevalence if bias > 0 else prevalence


def _placements(task: Task) -> NDArray[np.intp]:
    """Equally likely places of the signal tokens, (k, R)."""
    if math.comb(task.length, task.signal_tokens) <= MAX_PLACEMENTS:
        return np.array(list(combinations(range(task.length), task.signal_tokens)))
    return draw_positions(MAX_PLACEMENTS, task.length, task.signal_tokens, None, np.random.default_rng(0))
