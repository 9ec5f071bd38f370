"""The saddle point that describes a regularised linear readout in high dimension, solved by Newton's method.

For a feature law with nodes (y, f1, f2, rho, G), samples per dimension alpha and ridge lambda, the readout's overlaps
are the stationary point of (Barnfield, Cui, Lu, arXiv 2509.25153, Theorem 4; Gordon comparison)

    Psi(om, m, b, sig, V) = E[M(r; rho V)] - sig^2 / (2 alpha V) + (lambda / 2) (om^2 + m^2 + sig^2),
    r = om f1 + m f2 + b + S G,    S^2 = om^2 var(g_bar) + rho (m^2 + sig^2),

with M the Moreau envelope of the loss: M(r; t) = min_z loss(z) + (z - r)^2 / (2 t), attained at z = prox(r).

    om     overlap of the readout with the query             sig   norm of the rest of the readout
    m      overlap with the signal, orthogonal to the query  V     trace of the inverse Hessian over n
    b      bias

Every second derivative of Psi follows from the slope l1 = loss'(z) and its derivative D = d l1 / d r, because
d l1 / d t = -D l1. So one pass over the nodes gives the full Newton step in (om, m, b, log sig, log V).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw

Array = NDArray[np.float64]

HINGE = 1
KINDS = {"logistic": 0, "hinge": HINGE}
MAX_ITERATIONS = 1000
RESIDUAL = 1e-9  # relative imbalance of the equations at which they count as solved
NEWTON_RADIUS = 0.3  # residual below which Newton's step is tried
DAMPING = 0.8  # of the sweeps
PATIENCE = 50  # sweeps after which they become more careful
HALVINGS = 5
VANISHED = -6.0  # log norm of a readout, relative to that of pure noise, below which it tends to zero
STRAIGHT = 2.0  # shortens steps where the loss has no curvature
MAX_LOG_STEP = 2.0
TINY = 1e-300  # keeps logarithms and quotients finite where no sample has a slope


@dataclass(frozen=True)
class SaddlePoint:
    """Overlaps of the readout, and how well they solve the equations."""

    query_overlap: float  # om
    signal_overlap: float  # m
    bias: float  # b
    rest_norm: float  # sig
    response: float  # V
    train_loss: float  # mean loss of the training samples, without the ridge
    residual: float
    iterations: int

    @property
    def readout_norm(self) -> float:
        """|w|."""
        return math.hypot(self.query_overlap, self.signal_overlap, self.rest_norm)

    @property
    def state(self) -> Array:
        """Newton's variables (om, m, b, log sig, log V)."""
        return np.array(
            [self.query_overlap, self.signal_overlap, self.bias, math.log(self.rest_norm), math.log(self.response)]
        )


def saddle_point(
    law: FeatureLaw, loss: str, samples_per_dim: float, ridge: float, start: SaddlePoint | None = None
) -> SaddlePoint:
    """Solve for the overlaps, from `start` (a neighbouring solution) or from zero."""
    equations = _Equations(law, KINDS[loss], samples_per_dim, ridge)
    here = equations(start.state if start else _cold_start(samples_per_dim, ridge))
    iteration = sweeps = 0
    while here.residual > RESIDUAL and iteration < MAX_ITERATIONS:
        iteration += 1
        closer = _line_search(equations, here) if here.residual < NEWTON_RADIUS else None
        if closer is None:
            closer = equations(here.sweep(DAMPING / (1 + sweeps // PATIENCE)))
            sweeps += 1
        here = closer
    om, m, b, log_sig, log_v = here.state.tolist()
    return SaddlePoint(om, m, b, math.exp(log_sig), math.exp(log_v), here.train_loss, here.residual, iteration)


def _line_search(equations: _Equations, here: _Local) -> _Local | None:
    """The first halving of Newton's step that brings the equations closer to balance, if any does."""
    step, length = here.newton_step(), 1.0
    for _ in range(HALVINGS):
        trial = equations(here.state + length * step)
        if trial.residual < (1 - 0.1 * length) * here.residual:
            return trial
        length /= 2
    return None


def _cold_start(alpha: float, ridge: float) -> Array:
    response = min(10.0, 1 / (alpha * (ridge + 0.1 / (1 + alpha))))
    return np.array([0.0, 0.0, 0.0, 0.0, math.log(response)])


@dataclass(frozen=True)
class _Local:
    """Psi around one state: gradient and Hessian in (om, m, b, log sig, log V), and the substituted values."""

    state: Array
    gradient: Array
    hessian: Array
    residual: float
    train_loss: float
    substituted: Array  # log sig and log V as the last two equations give them

    def newton_step(self) -> Array:
        return self._cut(np.linalg.lstsq(self.hessian, -self.gradient)[0])

    def sweep(self, damping: float) -> Array:
        """Newton on the convex part (om, m, b), damped substitution of sig and V: slow, but it comes from afar."""
        slope, curvature = self.gradient[:3], self.hessian[:3, :3]
        # where the loss is straight there is no curvature, and only a step of bounded length makes sense
        bound = np.abs(slope).max() / (1 + np.abs(self.state[:3]).sum())
        step = np.zeros(5)
        step[:3] = np.linalg.lstsq(curvature + STRAIGHT * bound * np.eye(3), -slope)[0]
        step[3:] = damping * (self.substituted - self.state[3:])
        return self.state + self._cut(step)

    def _cut(self, step: NDArray[Any]) -> Array:
        """A step, cut to where a local model still means something."""
        reach = 2 * (1 + np.abs(self.state[:3]).sum())
        excess = max(1.0, np.abs(step[:3]).max() / reach, np.abs(step[3:]).max() / MAX_LOG_STEP)
        cut: Array = step / excess
        return cut


class _Equations:
    """Psi and its derivatives at any state."""

    def __init__(self, law: FeatureLaw, kind: int, alpha: float, ridge: float) -> None:
        self.law, self.kind, self.alpha, self.ridge = law, kind, alpha, ridge
        self.prox = np.full(law.label.size, np.nan)  # warm start of the next evaluation

    def __call__(self, state: Array) -> _Local:
        om, m, b = state[:3]
        sig, v = math.exp(state[3]), math.exp(state[4])
        law, alpha, ridge = self.law, self.alpha, self.ridge
        gradient, hessian, size, train_loss = _sums(
            law.label, law.weight, law.query_mean, law.signal_mean, law.spread, law.gauss, law.query_variance,
            self.kind, om, m, b, sig, v, self.prox,
        )  # fmt: skip
        energy, curvature = max(-2 * gradient[4], TINY), max(gradient[3] / sig, TINY)
        substituted = np.log([v * math.sqrt(alpha * energy), 1 / (alpha * (ridge + curvature))])
        gradient += np.array([ridge * om, ridge * m, 0, ridge * sig - sig / (alpha * v), sig**2 / (2 * alpha * v**2)])
        hessian += np.diag([ridge, ridge, 0, ridge - 1 / (alpha * v), -(sig**2) / (alpha * v**3)])
        hessian[[3, 4], [4, 3]] += sig / (alpha * v**2)
        unit = np.array([1, 1, 1, sig, v])  # from sig and V to their logarithms
        gradient *= unit
        hessian *= np.outer(unit, unit)
        hessian[[3, 4], [3, 4]] += gradient[3:]
        balance = sig**2 / (alpha * v)  # size of the two terms that cancel in each of the last two equations
        residual = np.max(np.abs(gradient) / np.maximum([size, size, size, balance, balance], TINY))
        # a hinge loss may prefer a constant answer to a weak signal: the readout then shrinks without end
        vanishing = self.kind == HINGE and state[3] < VANISHED - math.log(alpha) / 2
        return _Local(state, gradient, hessian, 0.0 if vanishing else float(residual), train_loss, substituted)


@njit(cache=True, nogil=True)
def _logistic_prox(t: float, width: float, start: float) -> float:
    """Solve u - width * sigmoid(-u) = t by Newton's method, kept inside the bracket [t, t + width]."""
    low, high, u = t, t + width, start
    if not (low <= u <= high):  # also when nothing is known yet: start is nan
        u = t if t > 0 else min(high, max(low, math.log1p(width)))
    for _ in range(100):
        slope = 1 / (1 + math.exp(min(u, 700.0)))
        excess = u - width * slope - t
        if excess > 0:
            high = u
        else:
            low = u
        new = u - excess / (1 + width * slope * (1 - slope))
        if not (low <= new <= high):
            new = 0.5 * (low + high)
        if abs(new - u) <= 1e-9 * (1 + abs(u)):  # convergence is quadratic: the error of `new` is far smaller
            return new
        u = new
    return u


@njit(cache=True, nogil=True)
def _fitted(kind: int, t: float, width: float, start: float) -> tuple[float, float, float]:
    """Prox u, slope of the loss there, and derivative of that slope by t, all in the variable u = y z."""
    if kind == HINGE:
        if t >= 1:
            return t, 0.0, 0.0
        if t > 1 - width:
            return 1.0, (t - 1) / width, 1 / width
        return t + width, -1.0, 0.0
    u = _logistic_prox(t, width, start)
    slope = 1 / (1 + math.exp(min(u, 700.0)))
    bend = slope * (1 - slope)
    return u, -slope, bend / (1 + width * bend)


@njit(cache=True, nogil=True)
def _sums(label, weight, query_mean, signal_mean, spread, gauss, query_variance, kind, om, m, b, sig, v, prox):  # type: ignore[no-untyped-def]
    """Gradient and Hessian of E[M(r; rho V)] in (om, m, b, sig, V), E|l1| and E[loss], in one pass; updates `prox`."""
    gradient, hessian, size, loss = np.zeros(5), np.zeros((5, 5)), 0.0, 0.0
    dr, dnoise = np.empty(4), np.zeros(4)  # derivatives of r and of S by (om, m, b, sig)
    for i in range(label.size):
        rho, g = spread[i], gauss[i]
        noise = math.sqrt(query_variance * om * om + rho * (m * m + sig * sig))
        r = om * query_mean[i] + m * signal_mean[i] + b + noise * g
        prox[i], slope, bend = _fitted(kind, label[i] * r, rho * v, prox[i])
        l1, wl, wd = label[i] * slope, weight[i] * label[i] * slope, weight[i] * bend
        dnoise[0], dnoise[1], dnoise[3] = query_variance * om / noise, rho * m / noise, rho * sig / noise
        dr[0], dr[1], dr[2], dr[3] = query_mean[i] + g * dnoise[0], signal_mean[i] + g * dnoise[1], 1.0, g * dnoise[3]
        pull = wl * g / noise  # S'' = (variances on the diagonal - S' S'^T) / S
        for p in range(4):
            gradient[p] += wl * dr[p]
            hessian[4, p] -= wd * rho * l1 * dr[p]
            for q in range(p + 1):
                hessian[p, q] += wd * dr[p] * dr[q] - pull * dnoise[p] * dnoise[q]
        hessian[0, 0] += pull * query_variance
        hessian[1, 1] += pull * rho
        hessian[3, 3] += pull * rho
        hessian[4, 4] += wd * (rho * l1) ** 2
        gradient[4] -= 0.5 * wl * l1 * rho
        size += abs(wl)
        loss += weight[i] * (
            max(1 - prox[i], 0.0) if kind == HINGE else math.log1p(math.exp(-abs(prox[i]))) + max(-prox[i], 0.0)
        )
    for p in range(5):
        for q in range(p):
            hessian[q, p] = hessian[p, q]
    return gradient, hessian, size, loss
