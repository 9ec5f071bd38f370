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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.envelope import envelope
from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw

Array = NDArray[np.float64]

MAX_ITERATIONS = 150  # of the joint method, which takes a dozen where it works
RESIDUAL = 1e-9  # relative imbalance of the equations that is aimed at
SOLVED = 1e-7  # and at which they count as solved: rounding may stop in between
NEWTON_RADIUS = 0.3  # residual below which Newton's step is tried
DAMPING = 0.8  # of the sweeps
PATIENCE = 50  # sweeps after which they become more careful
HALVINGS = 5
VANISHED = 1e-7  # norm of a readout, relative to what it can be, below which it counts as none
STRAIGHT = 2.0  # shortens steps where the loss has no curvature
MAX_LOG_STEP = 2.0
NOTHING = 20.0  # by which log sig then lies below the smallest that was looked at
SEARCH_REACH = 80.0  # in log sig, where no ridge bounds it
NEARBY = 1e-3  # in log sig, from where the joint method takes over
SETTLING = 100  # steps of an inner search, which takes a few
ROUNDING = 1e-14  # relative decrease that is none
LOG_REACH = 4.0  # of a step in log V
BALANCED = 1e-12  # difference in logarithms that is none
MOST_LOG_RESPONSE = 80.0  # of log V without a ridge
TINY = 1e-300  # keeps logarithms and quotients finite where no sample has a slope


@dataclass(frozen=True)
class SaddlePoint(Shown):
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
    """Solve for the overlaps, from `start` (a neighbouring solution) or from zero.

    Newton's method on all equations at once is quick, but may lose its way; a nested search, which the convexity of the
    problem makes safe, then finds the neighbourhood first. A readout far smaller than the error of the law's own noise,
    as a large ridge leaves it, has no saddle point before that noise is made symmetric.
    """
    equations = _Equations(law.merged() if loss == "hinge" else law, loss, samples_per_dim, ridge)
    first = start.state if start else _cold_start(samples_per_dim, ridge)
    here, iterations = _joint(equations, equations(first))
    if loss == "logistic" and here.residual > RESIDUAL:
        equations = _Equations(law.mirrored(), loss, samples_per_dim, ridge)
        here, more = _joint(equations, equations(first))
        iterations += more
    if here.residual > RESIDUAL or here.state[3] < equations.least:
        here, more = _joint(equations, _nested_search(equations, first))
        iterations += more
    om, m, b, log_sig, log_v = here.state.tolist()
    return SaddlePoint(om, m, b, math.exp(log_sig), math.exp(log_v), here.train_loss, here.residual, iterations)


def _joint(equations: _Equations, here: _Local) -> tuple[_Local, int]:
    """Newton steps on all equations, sweeps where these do not help, until balance or the end of patience."""
    iteration = sweeps = 0
    while here.residual > RESIDUAL and here.state[3] >= equations.least and iteration < MAX_ITERATIONS:
        iteration += 1
        closer = _line_search(equations, here) if here.residual < NEWTON_RADIUS else None
        if closer is None:
            closer = equations(here.sweep(DAMPING / (1 + sweeps // PATIENCE)))
            sweeps += 1
        here = closer
    return here, iteration


def _line_search(equations: _Equations, here: _Local) -> _Local | None:
    """The first halving of Newton's step that brings the equations closer to balance, if any does."""
    step, length = here.newton_step(), 1.0
    for _ in range(HALVINGS):
        trial = equations(here.state + length * step)
        if trial.residual < (1 - 0.1 * length) * here.residual:
            return trial
        length /= 2
    return None


def _nested_search(equations: _Equations, state: Array) -> _Local:
    """The neighbourhood of the saddle point, from the convex function of sig that is left when the rest has settled.

    A hinge loss may prefer a constant answer to a weak signal: the function then rises from sig = 0 on, and the answer is
    the smallest sig that is looked at.
    """

    def slope(log_sig: float) -> float:
        nonlocal state
        shrink = min(1.0, math.exp(log_sig - state[3]))
        state = _settled(equations, np.array([*(shrink * state[:2]), state[2], log_sig, state[4]])).state
        local = equations(state)
        return float(local.gradient[3])

    least, most = min(equations.least, equations.most), min(equations.most, equations.least + SEARCH_REACH)
    if slope(least) >= 0 or least == most:
        return _vanished(equations, state)
    if slope(most) > 0:
        while most - least > NEARBY:
            middle = (least + most) / 2
            least, most = (least, middle) if slope(middle) > 0 else (middle, most)
    return equations(state)


def _vanished(equations: _Equations, state: Array) -> _Local:
    """The constant answer of the more frequent class; of two equal classes every bias is as good, and the last one stays."""
    share = float(equations.law.weight @ (equations.law.label > 0))
    here = replace(equations(state), residual=0.0)
    if equations.loss != "hinge" or abs(2 * share - 1) < ROUNDING:
        return here
    constant = np.array([0.0, 0.0, math.copysign(1.0, share - 0.5), state[3] - NOTHING, state[4]])
    return replace(here, state=constant, train_loss=2 * min(share, 1 - share))


def _settled(equations: _Equations, state: Array) -> _Local:
    """Minimum over (om, m, b) of the maximum over V, at fixed sig: Newton's method, downhill only."""
    here = _responded(equations, state)
    for _ in range(SETTLING):
        gradient, curvature = here.gradient[:3], here.hessian[:3, :3]
        if here.state[4] < equations.most_response:  # V follows the other three
            cross = here.hessian[:3, 4]
            curvature = curvature - np.outer(cross, cross) / min(here.hessian[4, 4], -TINY)
        # where the loss is straight there is no curvature, and only a step of bounded length makes sense
        bound = np.abs(gradient).max() / (1 + np.abs(here.state[:3]).sum())
        step = np.linalg.lstsq(curvature + bound * np.eye(3), -gradient)[0]
        height, nothing = equations.height(here)
        gain, length = float(-gradient @ step), 1.0
        while gain * length > nothing:
            trial = here.state.copy()
            trial[:3] += length * step
            there = _responded(equations, trial)
            if equations.height(there)[0] <= height - 1e-4 * length * gain:
                break
            length /= 2
        else:
            return here
        here = there
    return here


def _responded(equations: _Equations, state: Array) -> _Local:
    """The state with the V that balances the last equation: a root of a function that rises with log V.

    Newton's method, and halving where it leaves the bracket.
    """
    low, high = -math.inf, math.inf
    here = equations(state)
    for _ in range(SETTLING):
        log_sig, log_v = here.state[3:]
        excess = here.substituted[0] - log_sig
        if abs(excess) < BALANCED or (excess < 0 and log_v >= equations.most_response) or high - low < BALANCED:
            break
        low, high = (log_v, high) if excess < 0 else (low, log_v)
        given, taken = (math.exp(min(2 * x - log_v, 700.0)) / equations.alpha for x in (log_sig, here.substituted[0]))
        rise = min(max(0.5 - (here.hessian[4, 4] + given / 2) / max(taken, TINY), 0.05), 1.0)
        state = here.state.copy()
        state[4] = min(log_v + max(-LOG_REACH, min(LOG_REACH, -excess / rise)), equations.most_response)
        if not low < state[4] < high:
            state[4] = (low + high) / 2
        here = equations(state)
    return here


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

    def __init__(self, law: FeatureLaw, loss: str, alpha: float, ridge: float) -> None:
        self.law, self.loss, self.alpha, self.ridge = law, loss, alpha, ridge
        self.prox = np.full(law.label.size, np.nan)  # warm start of the next evaluation
        spread = float(law.weight @ law.spread)
        # no slope exceeds one, so sig <= sqrt(E rho / alpha) / ridge; a score of order one needs sig = 1 / sqrt(E rho)
        self.most = math.log(spread / alpha) / 2 - math.log(max(ridge, TINY))
        # V <= 1 / (alpha ridge); where it wants to be larger, every sample can be fitted and sig is too large
        self.most_response = min(MOST_LOG_RESPONSE, 1 - math.log(max(alpha * ridge, TINY)))
        visible = -math.log(spread) / 2 + math.log(VANISHED)
        # the kinks of a hinge lie at scores of order one, where smaller readouts are lost in rounding
        self.least = visible if loss == "hinge" else min(self.most + math.log(VANISHED), visible)

    def __call__(self, state: Array) -> _Local:
        om, m, b = state[:3]
        sig, v = math.exp(state[3]), math.exp(state[4])
        alpha, ridge = self.alpha, self.ridge
        gradient, hessian, size, train_loss = envelope(self.law, self.loss, om, m, b, sig, v, self.prox)
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
        return _Local(state, gradient, hessian, float(residual), train_loss, substituted)

    def height(self, at: _Local) -> tuple[float, float]:
        """Psi up to the ridge on sig, and the part of it that is rounding."""
        om, m, _, log_sig, log_v = at.state
        given, taken = (math.exp(2 * x - log_v) / self.alpha for x in (log_sig, at.substituted[0]))
        parts = (at.train_loss, taken / 2, self.ridge / 2 * float(om**2 + m**2), -given / 2)
        return sum(parts), ROUNDING * sum(map(abs, parts))
