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

from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.alignment import TwoSteps, slopes_at_zero, two_steps
from whichtoken.theory.sparse_tokens.feature_law import attention_law
from whichtoken.theory.sparse_tokens.readout import solve_readout
from whichtoken.theory.sparse_tokens.saddle import logistic_prox
from whichtoken.theory.sparse_tokens.token_noise import exponentials, kept_points, normal_chunks

Array = NDArray[np.float64]

LOSSES = ("logistic", "square")
POINTS = 1 << 13
COPIES = 4
LONGEST = 512  # tokens up to which the shares are computed; beyond, they are below the accuracy of everything else
FEW_POINTS = 1 << 8  # whose solution is near that of many
RESIDUAL = 1e-9  # imbalance that is aimed at
SOLVED = 1e-6  # and at which the equations count as solved
MAX_LOG_STEP = 2.0
SHORTEST = 1e-3  # part of Newton's step
TINY = 1e-12
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
        if self.task.length > LONGEST:
            start = solve_readout(fresh, self.loss, self.samples_per_dim, self.ridge)
            norm2 = start.signal_overlap**2 + start.rest_norm**2
            return fresh.error(start.query_overlap, start.signal_overlap, start.bias, norm2), start.train_loss
        law, few = _law(self, points, seed), min(points, FEW_POINTS)
        along, beside, third = law.signal
        off = max(math.sqrt(1 - along**2), NOTHING)

        def first(size: int) -> Array:
            """What a readout of so many fresh samples has of the signal, on both axes off the query."""
            sample = attention_law(self.task, along, self.inverse_temperature, size, seed)
            start = solve_readout(sample, self.loss, self.samples_per_dim, self.ridge)
            toward = start.signal_overlap / off
            return np.array([start.query_overlap, toward * beside, toward * third, *start.state[2:], 0.0, 0.0])

        near = first(few)
        if few < points:
            near, _ = _newton(self, _law(self, few, seed), near)
        x, train_loss = _newton(self, law, near)
        if math.isnan(train_loss) and few < points:
            x, train_loss = _newton(self, law, first(points))
        if math.isnan(train_loss):
            return math.nan, math.nan
        norm2 = x[1] ** 2 + x[2] ** 2 + math.exp(2 * x[4])
        return fresh.error(x[0], (beside * x[1] + third * x[2]) / off, x[3], norm2), train_loss


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
    found = steps.readout_alignment
    carried = (cosine - found * along) / max(1 - found**2, NOTHING)
    axes = _Axes(cosine, off, carried, (along, beside, third))
    classes = [_class_nodes(training, axes, normals, label) for label in (1.0, -1.0)]
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


def _class_nodes(training: Training, axes: _Axes, normals: Array, label: float) -> tuple[Array, Array, Array, Array]:
    """Features (points, 3), rho (points,), and psi and its square norm before scaling, (points, 2) each, of one class."""
    task, steps, alpha = training.task, training.steps, training.samples_per_dim
    length, (along, beside, third) = task.length, axes.signal
    a = slopes_at_zero("logistic")[0 if label > 0 else 1]
    present = np.zeros(length)
    present[: task.signal_tokens] = task.strength * (label > 0)
    own_score = -training.lr_readout * a / (alpha * length)  # share of the sample in its score by w1
    seen = steps.readout_norm * axes.cosine, steps.readout_norm * axes.off
    share = 1 / (alpha * length * steps.query_norm)
    sums = _attend(
        normals, present, along, beside, *seen, training.inverse_temperature, steps.bias + own_score, label, share
    )
    h, picked, f_query, f_rest, f_third, rho, square = sums
    own_query = -h * share * picked + axes.carried * own_score / steps.readout_norm
    own_rest = (own_score / steps.readout_norm - axes.cosine * own_query) / max(axes.off, NOTHING)
    # the signal's direction owes nothing to the samples, so what they own along two axes they lack along the third
    own_third = -(along * own_query + beside * own_rest) / max(third, NOTHING)
    constant = np.ones(len(h))
    psi = np.stack([a / length * constant, h * picked], axis=1)
    energy = np.stack([a**2 / length * constant, h**2 * square], axis=1)
    means = np.stack([f_query + own_query, f_rest + own_rest, third * f_third + own_third], axis=1)
    return means, rho, psi, energy


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, several at a time
def _attend(normals, present, along, beside, seen_query, seen_rest, tau, bias, label, share):  # type: ignore[no-untyped-def]
    """Per point h, s . Pt, the tokens' mean along query, rest and signal under the attention s, |s|^2 and |Pt|^2: (7, points).

    The noise of a point along the query stands in the columns 1 to L of `normals`, that along the rest of w1 behind it.
    """
    points, length = len(normals), present.size
    out, work = np.zeros((7, points)), np.empty((4, length))
    seen, scores, powers, weights = work[0], work[1], work[2], work[3]
    for i in range(points):
        on_query, on_rest = normals[i, 1 : 1 + length], normals[i, 1 + length :]
        for t in range(length):
            seen[t] = seen_query * (on_query[t] + along * present[t]) + seen_rest * (on_rest[t] + beside * present[t])
        mean = seen.mean()
        h = -label / (1 + math.exp(min(label * (bias + mean), 700.0)))
        for t in range(length):
            seen[t] -= mean
            scores[t] = tau * (on_query[t] + along * present[t] - h * share * seen[t])
        peak = scores.max()
        for t in range(length):
            scores[t] -= peak
        exponentials(scores, powers, weights)
        total = picked = f_query = f_rest = f_signal = squares = energy = 0.0
        for t in range(length):
            total += weights[t]
            picked += weights[t] * seen[t]
            f_query += weights[t] * (on_query[t] + along * present[t])
            f_rest += weights[t] * (on_rest[t] + beside * present[t])
            f_signal += weights[t] * present[t]
            squares += weights[t] * weights[t]
            energy += seen[t] * seen[t]
        out[0, i], out[1, i], out[2, i], out[3, i] = h, picked / total, f_query / total, f_rest / total
        out[4, i], out[5, i], out[6, i] = f_signal / total, squares / (total * total), energy
    return out


def _newton(training: Training, law: _ReusedLaw, x: Array) -> tuple[Array, float]:
    """Solution and training loss by Newton's method; the loss is not a number where it does not get there."""
    prox, length = np.full(law.label.size, np.nan), 1.0
    here, sizes, slopes, train_loss = _balance(training, law, x, prox)
    while np.abs(here / sizes).max() > RESIDUAL and length > SHORTEST:
        step = np.linalg.solve(slopes / sizes[:, None], -here / sizes)
        trial = x + min(length, MAX_LOG_STEP / max(np.abs(step[4:6]).max(), TINY)) * step
        there = _balance(training, law, trial, prox)
        if np.linalg.norm(there[0] / sizes) < (1 - 0.1 * length) * np.linalg.norm(here / sizes):
            x, (here, sizes, slopes, train_loss), length = trial, there, min(2 * length, 1.0)
        else:
            length /= 2
    return x, train_loss if np.abs(here / sizes).max() < SOLVED else math.nan


def _balance(training: Training, law: _ReusedLaw, x: Array, prox: Array) -> tuple[Array, Array, Array, float]:
    """The equations in (om, mu, m, b, log sig, log V, kappa_1, kappa_2), sizes of their terms, slopes (8, 8), training loss."""
    alpha, ridge = training.samples_per_dim, training.ridge
    # a solver may stray where the exponentials overflow: there any large number turns it back
    sig2, v = math.exp(min(2 * x[4], FARTHEST)), math.exp(min(x[5], FARTHEST))
    overlaps, kappa = x[:3], x[6:]
    nodes = (law.label, law.weight, law.means, law.spread, law.gauss, law.pulls)
    sums, by, size, loss = _reused_sums(*nodes, training.loss == "square", overlaps, x[3], sig2, v, kappa, prox)
    energy, caught, chi = sums[4], sums[5:7], sums[7]
    rest = max(energy - caught @ caught, TINY * energy)
    ridges, root_energy = np.array([ridge, ridge, ridge + chi]), math.sqrt(energy)
    response, misfit = alpha * v * (ridge + chi), alpha * v**2 * rest / sig2
    logs = -math.log(response), -math.log(misfit)
    equations = np.concatenate([ridges * overlaps + sums[:3], sums[3:4], logs, kappa - caught])
    sizes = np.array([size, size, size, size, 1.0, 1.0, root_energy, root_energy])
    slopes = np.empty((8, 8))
    slopes[:4] = by[:4]
    slopes[:3, :3] += np.diag(ridges)
    slopes[2] += overlaps[2] * by[7]
    slopes[4] = -by[7] / (ridge + chi)
    slopes[5] = -(by[4] - 2 * caught @ by[5:7]) / rest
    slopes[[4, 5, 5], [5, 4, 5]] += -1.0, 2.0, -2.0
    slopes[6:] = np.eye(8)[6:] - by[5:7]
    return equations, sizes, slopes, float(loss)


@njit(cache=True, nogil=True)
def _reused_sums(label, weight, means, spread, gauss, pulls, square, overlaps, b, sig2, v, kappa, prox):  # type: ignore[no-untyped-def]
    """Sums over the nodes, their slopes in the eight unknowns (8, 8), E|l1| and the loss; updates `prox`.

    The sums are E of l1 times the means (3), l1, rho l1^2, l1 psi (2) and rho D. With r the score and t = rho V, l1 moves by
    D (dr - l1 dt), and D itself by bent / (1 + t c)^3 (dr - l1 dt) - D^2 dt, c and bent being second and third derivative
    of the loss.
    """
    sums, by, size, loss = np.zeros(8), np.zeros((8, 8)), 0.0, 0.0
    dr, by_node = np.zeros(8), np.empty(7)
    level = math.sqrt(overlaps[2] ** 2 + sig2)
    for i in range(label.size):
        rho, y, w, width = spread[i], label[i], weight[i], spread[i] * v
        root_rho, pull = math.sqrt(rho), v * (pulls[i, 0] * kappa[0] + pulls[i, 1] * kappa[1])
        score = b + root_rho * level * gauss[i] + pull
        for k in range(3):
            score += means[i, k] * overlaps[k]
            dr[k] = means[i, k]
        dr[2] += root_rho * gauss[i] * overlaps[2] / level
        dr[3], dr[4], dr[5] = 1.0, root_rho * gauss[i] * sig2 / level, pull
        dr[6], dr[7] = v * pulls[i, 0], v * pulls[i, 1]
        if square:
            l1, c, bent = (score - y) / (1 + width), 1.0, 0.0
            loss += w * l1 * l1 / 2
        else:
            prox[i] = logistic_prox(y * score, width, prox[i])
            flat = -1 / (1 + math.exp(min(prox[i], 700.0)))
            l1, c = y * flat, -flat * (1 + flat)
            bent = -y * c * (1 + 2 * flat)
            loss += w * (math.log1p(math.exp(-abs(prox[i]))) + max(-prox[i], 0.0))
        d = c / (1 + width * c)
        bent /= (1 + width * c) ** 3
        by_node[0], by_node[1], by_node[2], by_node[3] = w * means[i, 0], w * means[i, 1], w * means[i, 2], w
        by_node[4], by_node[5], by_node[6] = 2 * w * rho * l1, w * pulls[i, 0], w * pulls[i, 1]
        for k in range(8):
            dt = width if k == 5 else 0.0
            moved = dr[k] - l1 * dt
            by[7, k] += w * rho * (bent * moved - d * d * dt)
            for j in range(7):
                by[j, k] += by_node[j] * d * moved
        for j in range(7):
            sums[j] += by_node[j] * l1
        sums[7] += w * rho * d
        size += w * abs(l1)
    sums[4] /= 2
    return sums, by, size, loss
