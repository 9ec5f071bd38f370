"""What two gradient steps from zero make of the query: its norm and its cosine with the signal.

Step one moves readout and bias (the query has no gradient while the readout is zero); step two moves the query on the
same samples. In the limit of large dimension both are described by a few numbers (Barnfield, Cui, Lu, arXiv
2509.25153, Theorem 3 and Corollary 1).

Symbols
    a_y      slope of the loss at score 0           m_w, nu_w   overlap of the readout with the signal, and its norm
    kappa    R (1 - R/L)                            h           slope of the loss at the score after step one
    A, B     pull of the query along the signal and along the readout
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import LOSSES, Task
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]

GAUSS_HERMITE_NODES = 80
TRAPEZOID_NODES = 4001


@dataclass(frozen=True)
class TwoSteps(Shown):
    """Query and readout after two gradient steps: the result of `two_steps`.

    Attributes
    ----------
    alignment : float
        Cosine of query and signal; negative: attention avoids the signal tokens.
    query_norm : float
        Length of the query.
    query_overlap : float
        <query, signal>.
    readout_alignment : float
        Cosine of readout and signal.
    readout_norm : float
        Length of the readout.
    readout_cosine : float
        Cosine of query and readout.
    bias : float
        Bias of the readout.
    approach_constant : float
        C in |alignment| = 1 - C / samples_per_dim, for many samples.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import two_steps
    >>> steps = two_steps(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, samples_per_dim=4.0,
    ...                   lr_readout=0.5, lr_bias=0.5, lr_query=0.5)
    >>> steps.positive, round(steps.alignment, 2)
    (True, 0.98)
    """

    alignment: float
    query_norm: float
    query_overlap: float
    readout_alignment: float
    readout_norm: float
    readout_cosine: float
    bias: float
    approach_constant: float

    @property
    def positive(self) -> bool:
        """Whether attention favors the signal tokens."""
        return self.alignment > 0


def two_steps(
    *,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    samples_per_dim: float,
    lr_readout: float,
    lr_bias: float,
    lr_query: float,
    loss: str = "logistic",
    inverse_temperature: float = 1.0,
    reuse: bool = True,
    bias_correction: bool = False,
) -> TwoSteps:
    """Predict alignment and norm of the query after two gradient steps.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    samples_per_dim : float
        n / d of the samples behind the two steps; `inf` for the population limit.
    lr_readout, lr_bias, lr_query : float
        Step sizes. The alignment does not depend on `lr_query`.
    loss : {"logistic", "square", "hinge"}, default="logistic"
        Loss of the readout.
    inverse_temperature : float, default=1.0
        beta inside the softmax, not multiplied by the norm of the query.
    reuse : bool, default=True
        Whether the second step sees the samples of the first: each sample then meets its own share of the readout.
    bias_correction : bool, default=False
        Replace the bias after step one by the best constant score (logistic: the log-odds of the prevalence), so that
        the mean slope vanishes and rare, weak signals are not anti-aligned. Not defined for the hinge loss.

    Returns
    -------
    TwoSteps
        Overlaps and norms of the query and the readout.

    References
    ----------
    Barnfield, Cui, Lu, arXiv 2509.25153, Theorem 3 and Corollary 1.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import two_steps
    >>> task = dict(length=10, signal_tokens=1, strength=5.0, prevalence=0.5)
    >>> rates = dict(lr_readout=0.5, lr_bias=0.5, lr_query=0.5)
    >>> few = two_steps(**task, samples_per_dim=1.0, **rates).alignment
    >>> many = two_steps(**task, samples_per_dim=10.0, **rates).alignment
    >>> few < many < 1
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    check_range("samples_per_dim", samples_per_dim, 0.0, math.inf, include_high=True)
    check_choice("loss", loss, LOSSES)
    rates = {"lr_readout": lr_readout, "lr_query": lr_query, "inverse_temperature": inverse_temperature}
    for name, value in rates.items():
        check_range(name, value, 0.0, math.inf)
    check_range("lr_bias", lr_bias, 0.0, math.inf, include_low=True)
    positive, negative = slopes_at_zero(loss)
    # the zero avoids a negative zero
    bias = -lr_bias * (prevalence * positive + (1 - prevalence) * negative) + 0.0
    if bias_correction:
        bias = constant_score(prevalence, loss)
    arguments = (task, loss, lr_readout, bias, reuse)
    gain = lr_query * inverse_temperature / length
    moments, limit = _moments(*arguments, samples_per_dim), _moments(*arguments, math.inf)
    overlap = -gain * moments.readout_overlap * (moments.along_signal + moments.along_readout)
    norm = gain * math.sqrt(moments.query_norm2 + moments.query_noise / samples_per_dim)
    norms = norm * moments.readout_norm
    # Corollary 1: first-order loss of alignment in one over the samples per dimension
    pull2 = ((limit.along_signal + limit.along_readout) * limit.readout_overlap) ** 2
    noise = limit.along_readout**2 * _readout_noise(task, loss, lr_readout) + limit.query_noise
    return TwoSteps(
        alignment=overlap / norm if norm > 0 else 0.0,
        query_norm=norm,
        query_overlap=overlap,
        readout_alignment=moments.readout_overlap / moments.readout_norm if moments.readout_norm > 0 else 0.0,
        readout_norm=moments.readout_norm,
        readout_cosine=-gain * moments.across / norms if norms > 0 else 0.0,
        bias=bias,
        approach_constant=noise / (2 * pull2) if pull2 > 0 else math.inf,
    )


def constant_score(prevalence: float, loss: str) -> float:
    """Bias that minimizes the expected loss of a constant score."""
    if loss == "hinge":
        raise ValueError("bias_correction is defined for loss='logistic' and 'square'; got loss='hinge'")
    return math.log(prevalence / (1 - prevalence)) if loss == "logistic" else 2 * prevalence - 1


def loss_slope(loss: str, score: Array, label: Array | float) -> Array:
    """Derivative of the loss by the score."""
    if loss == "square":
        return score - label
    if loss == "hinge":
        return np.where(label * score < 1, -label, 0.0)
    return np.asarray(-label * expit(-label * score))


@dataclass(frozen=True)
class _Moments:
    readout_overlap: float  # m_w
    readout_norm: float  # nu_w
    along_signal: float  # A
    along_readout: float  # B
    across: float  # <query, readout>, in units of the gain
    query_norm2: float  # squared norm of the query's mean, in units of the gain
    query_noise: float  # times 1 / alpha0: squared norm of its fluctuation


def _moments(task: Task, loss: str, lr: float, bias: float, reuse: bool, alpha: float) -> _Moments:
    length, strength, pi = task.length, task.strength, task.prevalence
    share = task.signal_tokens / length
    positive, negative = slopes_at_zero(loss)
    m = -lr * pi * positive * strength * share
    nu2 = m**2 + _readout_noise(task, loss, lr) / alpha
    own = lr / (alpha * length) if reuse else 0.0
    gauss, weight = _gaussian_rule(loss)
    noise = math.sqrt(nu2 / length) * gauss
    h_positive = loss_slope(loss, bias + strength * share * m - own * positive + noise, 1.0)
    h_negative = loss_slope(loss, bias - own * negative + noise, -1.0)
    first, second = pi * weight @ h_positive, pi * weight @ h_positive**2
    pull = strength**2 * task.signal_tokens * (1 - share)
    a, b = pull * first, (length - 1) * (first + (1 - pi) * weight @ h_negative)
    return _Moments(
        readout_overlap=m,
        readout_norm=math.sqrt(nu2),
        along_signal=float(a),
        along_readout=float(b),
        across=float(a * m**2 + b * nu2),
        query_norm2=float((a**2 + 2 * a * b) * m**2 + b**2 * nu2),
        query_noise=float(pull * m**2 * second + (length - 1) * nu2 * (second + (1 - pi) * weight @ h_negative**2)),
    )


def slopes_at_zero(loss: str) -> tuple[float, float]:
    zero = np.zeros(())
    return float(loss_slope(loss, zero, 1.0)), float(loss_slope(loss, zero, -1.0))


def _readout_noise(task: Task, loss: str, lr: float) -> float:
    """Squared norm of the readout's noise after step one, times samples per dimension."""
    positive, negative = slopes_at_zero(loss)
    return lr**2 * (task.prevalence * positive**2 + (1 - task.prevalence) * negative**2) / task.length


@lru_cache(maxsize=len(LOSSES))
def _gaussian_rule(loss: str) -> tuple[Array, Array]:
    """Gauss-Hermite, or many equal steps where the slope of the loss jumps."""
    if loss == "hinge":
        nodes = np.linspace(-8.5, 8.5, TRAPEZOID_NODES)
        weight = np.exp(-(nodes**2) / 2)
    else:
        nodes, weight = np.polynomial.hermite_e.hermegauss(GAUSS_HERMITE_NODES)
    return nodes, weight / weight.sum()
