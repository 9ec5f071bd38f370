"""Attention whose query and readout are trained on the same samples: what reuse changes, derived by leaving one out.

Two steps on n samples give the query q and, on the way, a readout w1; the head is then trained on the features of the very
same samples. Each sample has therefore moved q and w1 a little, and meets its own share of them again (`alignment.py` has
the symbols; g = lr_query / L is the gain of the step on the query, P = 1 - 11^T/L centers over tokens, t = X w1):

    scores of a training sample    tau X q / |q|  -  tau g h P t / (alpha |q|)     with q and w1 as the others make them
    its feature along w1           s . t  -  lr_readout a_y / (alpha L), and so along the query, of which w1 is a part

because X X^T is d times the identity, in high dimension, and d = n / alpha. What is left of the noise is Gaussian, but for two
linear constraints that q and w1 impose on it: the slopes a_y 1/L and h P t, as vectors over all tokens of all samples, are
orthogonal to it. In Gordon's comparison (as in `saddle.py`) they take the part of the slopes l1 along them out of the energy and
pull on every score in return:

    psi_1 = (a_y / L) / sqrt(E[a_y^2] / L),    psi_2 = h s.Pt / sqrt(E[h^2 |Pt|^2]),    kappa_k = E[l1 psi_k]
    z = prox(r + V sum_k kappa_k psi_k; rho V)
    sig^2 = alpha V^2 (E[rho l1^2] - sum_k kappa_k^2)

and the other equations stay as they are, with one overlap more: that with w1. Without temperature the head is mean pooling
and reuse changes nothing, as it must; in long sequences the shares vanish as 1 / sqrt(alpha L).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import root

from whichtoken.attention import pool_weights
from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.alignment import TwoSteps, loss_slope, slopes_at_zero, two_steps
from whichtoken.theory.sparse_tokens.feature_law import attention_law
from whichtoken.theory.sparse_tokens.readout import solve_readout
from whichtoken.theory.sparse_tokens.saddle import logistic_prox
from whichtoken.theory.sparse_tokens.token_noise import kept_points, normal_chunks

Array = NDArray[np.float64]

LOSSES = ("logistic", "square")
POINTS = 1 << 13
COPIES = 4
LONGEST = 512  # tokens up to which the shares are computed; beyond, they are below the accuracy of everything else
SOLVED = 1e-6
LEARNING_RATE = 0.5
NOTHING = 1e-9  # length of an axis that is none
FARTHEST = 100.0  # logarithm of a size that no solution has


@dataclass(frozen=True)
class ReusedReadout(Shown):
    """Prediction for query and readout trained on the same samples, in the limit of large dimension.

    Attributes
    ----------
    test_error : float
        Share of wrong labels on fresh data.
    error_estimate : float
        Numerical error of test_error, absolute.
    train_loss : float
        Mean training loss, without the ridge.
    train_loss_error : float
        Numerical error of train_loss, absolute.
    alignment : float
        Cosine of query and signal.
    converged : bool
        Whether the equations were solved; all values but the alignment are nan where they were not.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import reused_erm
    >>> task = dict(length=10, signal_tokens=1, strength=5.0, prevalence=0.5)
    >>> found = reused_erm(**task, samples_per_dim=2.0, inverse_temperature=1.0, ridge=0.01)
    >>> found.converged, found.train_loss < found.test_error
    (True, True)
    """

    test_error: float
    error_estimate: float
    train_loss: float
    train_loss_error: float
    alignment: float
    converged: bool


def reused_erm(
    *,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    samples_per_dim: float,
    inverse_temperature: float,
    ridge: float,
    loss: str = "logistic",
    lr_readout: float = 0.5,
    lr_bias: float = 0.5,
    bias_correction: bool = True,
    points: int = POINTS,
) -> ReusedReadout:
    """Predict attention whose query (two logistic steps) and readout are trained on the same samples.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence : int, int, float, float
        The task, as in `Task`.
    samples_per_dim : float
        n / d: all samples, for the query and for the readout.
    inverse_temperature : float
        Inverse temperature times norm of the query.
    ridge : float
        Of the readout, above 0.
    loss : {"logistic", "square"}, default="logistic"
        Loss of the readout.
    lr_readout, lr_bias : float, default=0.5
        Steps on readout and bias before the step on the query.
    bias_correction : bool, default=True
        Whether the bias is at the log-odds of the prevalence for the step on the query.
    points : int, default=8192
        Sobol points per class, a power of two.

    Returns
    -------
    ReusedReadout
        Test error, training loss and alignment.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import erm, reused_erm
    >>> task = dict(length=10, signal_tokens=1, strength=5.0, prevalence=0.5)
    >>> reused = reused_erm(**task, samples_per_dim=4.0, inverse_temperature=1.0, ridge=0.01)
    >>> split = erm(**task, alignment=0.94, samples_per_dim=2.0, inverse_temperature=1.0, ridge=0.01)
    >>> reused.test_error < split.test_error  # all samples for both do better than half of them for each
    True
    """
    task = Task(length, signal_tokens, strength, prevalence)
    check_choice("loss", loss, LOSSES)
    check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
    check_range("ridge", ridge, 0.0, math.inf)
    training = Training(task, samples_per_dim, inverse_temperature, ridge, bias_correction, lr_readout, lr_bias, loss)
    found = np.array([training.solve(points, seed) for seed in range(COPIES)])
    (error, train), doubt = found.mean(axis=0), 2 * found.std(axis=0, ddof=1) / math.sqrt(COPIES)
    converged = bool(np.isfinite(found).all())
    return ReusedReadout(
        float(error), float(doubt[0]), float(train), float(doubt[1]), training.steps.alignment, converged
    )


@dataclass(frozen=True)
class Training:
    """How query and readout are trained on the same samples."""

    task: Task
    samples_per_dim: float
    inverse_temperature: float
    ridge: float
    bias_correction: bool = True
    lr_readout: float = LEARNING_RATE
    lr_bias: float = LEARNING_RATE
    loss: str = "logistic"

    @cached_property
    def steps(self) -> TwoSteps:
        """The query; its norm is that of a step of size one."""
        return two_steps(
            **asdict(self.task),
            samples_per_dim=self.samples_per_dim,
            lr_readout=self.lr_readout,
            lr_bias=self.lr_bias,
            lr_query=1.0,
            bias_correction=self.bias_correction,
        )

    def solve(self, points: int, seed: int = 0) -> tuple[float, float]:
        """Test error and training loss by one set of points; not a number where the equations could not be solved."""
        points = kept_points(points, 2 * self.task.length)
        fresh = attention_law(self.task, self.steps.alignment, self.inverse_temperature, points, seed)
        start = solve_readout(fresh, self.loss, self.samples_per_dim, self.ridge)
        if self.task.length > LONGEST:
            norm2 = start.signal_overlap**2 + start.rest_norm**2
            return fresh.error(start.query_overlap, start.signal_overlap, start.bias, norm2), start.train_loss
        law = _law(self, points, seed)
        prox = np.full(law.label.size, np.nan)
        along, beside, third = law.signal
        off = max(math.sqrt(1 - along**2), NOTHING)
        # start from what a readout of fresh samples has of the signal, on both axes off the query
        toward = start.signal_overlap / off
        overlaps = [start.query_overlap, toward * beside, toward * third]
        first = [*overlaps, *start.state[2:], 0.0, 0.0]
        for method in ("hybr", "lm"):  # the first is quicker, the second comes from farther away
            found = root(lambda x: _balance(self, law, x, prox)[0], first, tol=1e-9, method=method)
            balance, train_loss = _balance(self, law, found.x, prox)
            if np.abs(balance).max() < SOLVED:
                break
        else:
            return math.nan, math.nan
        om, mu, m, b, log_sig = found.x[:5]
        signal = (beside * mu + third * m) / off
        return fresh.error(om, signal, b, mu**2 + m**2 + math.exp(2 * log_sig)), train_loss


@dataclass(frozen=True, eq=False)
class _ReusedLaw:
    """What the readout sees of the training samples, node by node; its axes are the query, the rest of w1, the rest of xi."""

    label: Array
    weight: Array
    means: Array  # (nodes, 3): features along the three axes, without the noise along the third
    spread: Array  # rho
    gauss: Array
    pulls: Array  # (nodes, 2): psi
    signal: tuple[float, float, float]  # cosines of the signal with the three axes


def _law(training: Training, points: int, seed: int) -> _ReusedLaw:
    task, steps = training.task, training.steps
    cosine, along = steps.readout_cosine, steps.alignment
    off = math.sqrt(max(1 - cosine**2, 0.0))
    beside = (steps.readout_alignment - cosine * along) / off if off > NOTHING else 0.0
    third = math.sqrt(max(1 - along**2 - beside**2, 0.0))
    normals = np.concatenate(list(normal_chunks(points, 2 * task.length + 1, seed)))
    noise = normals[:, 1 : 1 + task.length], normals[:, 1 + task.length :]
    found = steps.readout_alignment
    carried = (cosine - found * along) / max(1 - found**2, NOTHING)
    axes = _Axes(cosine, off, carried, (along, beside, third))
    classes = [_class_nodes(training, axes, *noise, label) for label in (1.0, -1.0)]
    means, spread, psi, energy = (np.concatenate(column) for column in zip(*classes, strict=True))
    label = np.repeat([1.0, -1.0], points)
    weight = np.where(label > 0, task.prevalence, 1 - task.prevalence) / points
    pulls = psi / np.sqrt(weight @ energy)
    return _ReusedLaw(label, weight, means, spread, np.tile(normals[:, 0], 2), pulls, axes.signal)


@dataclass(frozen=True)
class _Axes:
    cosine: float  # of w1 with the query
    off: float  # and its sine
    carried: float  # part of w1 in the query: q / |q| = carried w1 / |w1| + a part of the signal + noise
    signal: tuple[float, float, float]


def _class_nodes(
    training: Training, axes: _Axes, noise: Array, rest: Array, label: float
) -> tuple[Array, Array, Array, Array]:
    """Features (points, 3), rho (points,), and psi and its square norm before scaling, (points, 2) each, of one class."""
    task, steps, alpha = training.task, training.steps, training.samples_per_dim
    length, (along, beside, third) = task.length, axes.signal
    a = slopes_at_zero("logistic")[0 if label > 0 else 1]
    present = np.zeros(length)
    present[: task.signal_tokens] = task.strength * (label > 0)
    on_query, on_rest = noise + along * present, rest + beside * present
    seen = steps.readout_norm * (axes.cosine * on_query + axes.off * on_rest)  # t, by the other samples
    mean = seen.mean(axis=1)
    own_score = -training.lr_readout * a / (alpha * length)  # share of the sample in its score by w1
    h = loss_slope("logistic", steps.bias + mean + own_score, label)
    centered = seen - mean[:, None]
    own = -h / (alpha * length * steps.query_norm)  # share in its score by the query, over P t
    scores = training.inverse_temperature * (on_query + own[:, None] * centered)
    attention = pool_weights(scores.ravel(), np.arange(0, scores.size + 1, length)).reshape(scores.shape)
    picked = (attention * centered).sum(axis=1)
    own_query = own * picked + axes.carried * own_score / steps.readout_norm
    own_rest = (own_score / steps.readout_norm - axes.cosine * own_query) / max(axes.off, NOTHING)
    f_query = (attention * on_query).sum(axis=1) + own_query
    f_rest = (attention * on_rest).sum(axis=1) + own_rest
    # the signal's direction owes nothing to the samples, so what they own along two axes they lack along the third
    f_third = third * (attention @ present) - (along * own_query + beside * own_rest) / max(third, NOTHING)
    constant = np.ones(len(h))
    psi = np.stack([a / length * constant, h * picked], axis=1)
    energy = np.stack([a**2 / length * constant, h**2 * (centered**2).sum(axis=1)], axis=1)
    return np.stack([f_query, f_rest, f_third], axis=1), (attention**2).sum(axis=1), psi, energy


def _balance(training: Training, law: _ReusedLaw, x: Array, prox: Array) -> tuple[Array, float]:
    """The equations in (om, mu, m, b, log sig, log V, kappa_1, kappa_2) relative to their terms, and the training loss."""
    alpha, ridge = training.samples_per_dim, training.ridge
    # a solver may stray where the exponentials overflow: there any large number turns it back
    sig2, v = math.exp(min(2 * x[4], FARTHEST)), math.exp(min(x[5], FARTHEST))
    overlaps, b, kappa = x[:3], x[3], x[6:]
    noise = np.sqrt(law.spread * (overlaps[2] ** 2 + sig2))
    width = law.spread * v
    score = law.means @ overlaps + b + noise * law.gauss + v * (law.pulls @ kappa)
    if training.loss == "square":
        slope = (score - law.label) / (1 + width)
        bend, losses = 1 / (1 + width), slope**2 / 2
    else:
        slope, bend, losses = _logistic(law.label, score, width, prox)
    pulled, size = law.weight * slope, float(law.weight @ np.abs(slope))
    chi = law.weight @ (law.spread * bend)
    steepness = np.array([ridge, ridge, ridge + chi])
    energy = pulled @ (law.spread * slope)
    caught = pulled @ law.pulls
    equations = np.concatenate([
        (steepness * overlaps + pulled @ law.means) / size,
        [pulled.sum() / size],
        [1 - alpha * v * (ridge + chi)],
        [1 - alpha * v**2 * (energy - caught @ caught) / sig2],
        (kappa - caught) / math.sqrt(energy),
    ])  # fmt: skip
    return equations, float(law.weight @ losses)


@njit(cache=True, nogil=True)
def _logistic(label, score, width, prox):  # type: ignore[no-untyped-def]
    """Slope, its derivative by the score, and loss of the logistic envelope; updates `prox`, where the next call starts."""
    slope, bend, loss = np.empty(label.size), np.empty(label.size), np.empty(label.size)
    for i in range(label.size):
        prox[i] = logistic_prox(label[i] * score[i], width[i], prox[i])
        flat = -1 / (1 + math.exp(min(prox[i], 700.0)))
        slope[i] = label[i] * flat
        curvature = -flat * (1 + flat)
        bend[i] = curvature / (1 + width[i] * curvature)
        loss[i] = math.log1p(math.exp(-abs(prox[i]))) + max(-prox[i], 0.0)
    return slope, bend, loss
