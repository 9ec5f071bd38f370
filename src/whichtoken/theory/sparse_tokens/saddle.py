"""The saddle point that describes a regularized linear readout in high dimension, solved by Newton's method.

For a feature law with nodes (y, f1, f2, rho, G), samples per dimension alpha and ridge lambda, the readout's overlaps
are the stationary point of (Barnfield, Cui, Lu, arXiv 2509.25153, Theorem 4; Gordon comparison)

    Psi(om, m, b, sig, V) = E[M(r; rho V)] - sig^2 / (2 alpha V) + (lambda / 2) (om^2 + m^2 + sig^2),
    r = om f1 + m f2 + b + S G,    S^2 = om^2 var(g_bar) + rho (m^2 + sig^2),

with M the Moreau envelope of the loss: M(r; t) = min_z loss(z) + (z - r)^2 / (2 t), attained at z = prox(r).

    om     overlap of the readout with the query             sig   norm of the rest of the readout
    m      overlap with the signal, orthogonal to the query  V     trace of the inverse Hessian over n
    b      bias

Every second derivative of Psi follows from the slope l1 = loss'(z) and its derivative D = d l1 / d r, because
d l1 / d t = -D l1. So one pass over the nodes (`envelope`) gives the full Newton step in (om, m, b, log sig, log V). The logistic
envelope is integrated over the Gaussian nodes of the law. That of the hinge bends within a width rho V, which can be far
narrower than the nodes lie apart; its Gaussian integrals are explicit, so the nodes' own Gaussians are not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import brentq

from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.feature_law import FeatureLaw, normal_cdf

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
NARROW = 0.5  # width of the bend in standard deviations below which differences of Gaussian integrals lose digits
NODES, WEIGHTS = (0.5 * np.polynomial.legendre.leggauss(6)[0] + 0.5, 0.5 * np.polynomial.legendre.leggauss(6)[1])
ROOT_TWO_PI = math.sqrt(2 * math.pi)


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
    """Solve for the overlaps, from `start` (a neighboring solution) or from zero.

    Newton's method on all equations at once is quick, but may lose its way; a nested search, which the convexity of the
    problem makes safe, then finds the neighborhood first. A readout far smaller than the error of the law's own noise,
    as a large ridge leaves it, has no saddle point before that noise is made symmetric.
    """
    equations = _Equations(law.merge() if loss == "hinge" else law, loss, samples_per_dim, ridge)
    cold = min(10.0, 1 / (samples_per_dim * (ridge + 0.1 / (1 + samples_per_dim))))
    first = start.state if start else np.array([0.0, 0.0, 0.0, 0.0, math.log(cold)])
    here, iterations = _joint(equations, equations(first))
    if loss == "logistic" and here.residual > RESIDUAL:
        equations = _Equations(law.mirror(), loss, samples_per_dim, ridge)
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
    step, length = here.cut(np.linalg.lstsq(here.hessian, -here.gradient)[0]), 1.0
    for _ in range(HALVINGS):
        trial = equations(here.state + length * step)
        if trial.residual < (1 - 0.1 * length) * here.residual:
            return trial
        length /= 2
    return None


def _nested_search(equations: _Equations, state: Array) -> _Local:
    """The neighborhood of the saddle point, from the convex function of sig that is left when the rest has settled.

    A hinge loss may prefer a constant answer to a weak signal: the function then rises from sig = 0 on, and the answer is
    the smallest sig that is looked at.
    """

    def slope(log_sig: float) -> float:
        nonlocal state
        shrink = min(1.0, math.exp(log_sig - state[3]))
        state = _settle(equations, np.array([*(shrink * state[:2]), state[2], log_sig, state[4]])).state
        local = equations(state)
        return float(local.gradient[3])

    least, most = min(equations.least, equations.most), min(equations.most, equations.least + SEARCH_REACH)
    if slope(least) >= 0 or least == most:
        return _constant_answer(equations, state)
    if slope(most) > 0:
        while most - least > NEARBY:
            middle = (least + most) / 2
            least, most = (least, middle) if slope(middle) > 0 else (middle, most)
    return equations(state)


def _constant_answer(equations: _Equations, state: Array) -> _Local:
    """The constant answer of the more frequent class; of two equal classes every bias is as good, and the last one stays."""
    share = float(equations.law.weight @ (equations.law.label > 0))
    here = replace(equations(state), residual=0.0)
    if equations.loss != "hinge" or abs(2 * share - 1) < ROUNDING:
        return here
    constant = np.array([0.0, 0.0, math.copysign(1.0, share - 0.5), state[3] - NOTHING, state[4]])
    return replace(here, state=constant, train_loss=2 * min(share, 1 - share))


def _settle(equations: _Equations, state: Array) -> _Local:
    """Minimum over (om, m, b) of the maximum over V, at fixed sig: Newton's method, downhill only."""
    here = _balance_response(equations, state)
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
            there = _balance_response(equations, trial)
            if equations.height(there)[0] <= height - 1e-4 * length * gain:
                break
            length /= 2
        else:
            return here
        here = there
    return here


def _balance_response(equations: _Equations, state: Array) -> _Local:
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


@dataclass(frozen=True)
class _Local:
    """Psi around one state: gradient and Hessian in (om, m, b, log sig, log V), and the substituted values."""

    state: Array
    gradient: Array
    hessian: Array
    residual: float
    train_loss: float
    substituted: Array  # log sig and log V as the last two equations give them

    def sweep(self, damping: float) -> Array:
        """Newton on the convex part (om, m, b), damped substitution of sig and V: slow, but it comes from afar."""
        slope, curvature = self.gradient[:3], self.hessian[:3, :3]
        # where the loss is straight there is no curvature, and only a step of bounded length makes sense
        bound = np.abs(slope).max() / (1 + np.abs(self.state[:3]).sum())
        step = np.zeros(5)
        step[:3] = np.linalg.lstsq(curvature + STRAIGHT * bound * np.eye(3), -slope)[0]
        step[3:] = damping * (self.substituted - self.state[3:])
        return self.state + self.cut(step)

    def cut(self, step: NDArray[Any]) -> Array:
        """A step, cut to where a local model still means something."""
        reach = 2 * (1 + np.abs(self.state[:3]).sum())
        return np.asarray(step / max(1.0, np.abs(step[:3]).max() / reach, np.abs(step[3:]).max() / MAX_LOG_STEP))


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


def square_saddle_point(law: FeatureLaw, samples_per_dim: float, ridge: float) -> SaddlePoint:
    """Overlaps of the ridge-regression readout; `ridge` may be 0 above one sample per dimension."""
    alpha, rho, w, y = samples_per_dim, law.spread, law.weight, law.label

    def excess(log_v: float) -> float:
        v = math.exp(log_v)
        return float(v * alpha * (ridge + w @ (rho / (1 + v * rho))) - 1)

    log_v, search = brentq(excess, -60.0, 60.0, xtol=1e-14, full_output=True)
    v = math.exp(log_v)
    damp = 1 / (1 + v * rho)  # (nodes,)
    curvature = w @ (rho * damp)
    columns = np.stack([law.query_mean, law.signal_mean, np.ones_like(rho)])  # (3, nodes)
    gram = (columns * (w * damp)) @ columns.T
    gram += np.diag([ridge + law.query_variance * (w @ damp), ridge + curvature, 0.0])
    # least squares, because without a query direction or ridge the first row is zero and the overlap is 0
    om, m, b = np.linalg.lstsq(gram, columns @ (w * damp * y))[0].tolist()
    misfit = (np.array([om, m, b]) @ columns - y) ** 2 + law.query_variance * om**2 + rho * m**2
    gain = alpha * v**2
    rest = gain * (w @ (rho * damp**2 * misfit)) / (1 - gain * (w @ (rho * damp * rho * damp)))
    train_loss = w @ (damp**2 * (misfit + rho * rest)) / 2
    return SaddlePoint(om, m, b, math.sqrt(rest), v, float(train_loss), abs(excess(log_v)), search.iterations)


def envelope(
    law: FeatureLaw, loss: str, om: float, m: float, b: float, sig: float, v: float, prox: Array
) -> tuple[Array, Array, float, float]:
    """Gradient (5,) and Hessian (5, 5) of the mean envelope, E|l1| and E[loss]; `prox` (nodes,) is kept between calls."""
    nodes = (law.label, law.weight, law.query_mean, law.signal_mean, law.spread)
    if loss == "hinge":
        return tuple(_hinge_sums(*nodes, law.query_variance, om, m, b, sig, v))
    return tuple(_logistic_sums(*nodes, law.gauss, law.query_variance, om, m, b, sig, v, prox))


@njit(cache=True, nogil=True)
def logistic_prox(t: float, width: float, start: float) -> float:
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
def _logistic_sums(label, weight, query_mean, signal_mean, spread, gauss, query_variance, om, m, b, sig, v, prox):  # type: ignore[no-untyped-def]
    """All sums in one pass over the nodes; updates `prox`, from which the next call starts."""
    gradient, hessian, size, loss = np.zeros(5), np.zeros((5, 5)), 0.0, 0.0
    dr, dnoise = np.empty(4), np.zeros(4)  # derivatives of r and of S by (om, m, b, sig)
    for i in range(label.size):
        rho, g = spread[i], gauss[i]
        noise = math.sqrt(query_variance * om * om + rho * (m * m + sig * sig))
        r = om * query_mean[i] + m * signal_mean[i] + b + noise * g
        prox[i] = logistic_prox(label[i] * r, rho * v, prox[i])  # in the variable y z
        slope = -1 / (1 + math.exp(min(prox[i], 700.0)))
        bend = -slope * (1 + slope)
        bend /= 1 + rho * v * bend
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
        loss += weight[i] * (math.log1p(math.exp(-abs(prox[i]))) + max(-prox[i], 0.0))
    for p in range(5):
        for q in range(p):
            hessian[q, p] = hessian[p, q]
    return gradient, hessian, size, loss


@njit(cache=True, nogil=True)
def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / ROOT_TWO_PI


@njit(cache=True, nogil=True)
def _bend_moments(high: float, width: float) -> tuple[float, float, float, float, float, float]:
    """Integrals over g from `high - width` to `high` of density * g^k * x^j / width, with x = (g - high) / width.

    In the order (k, j) = (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2).
    """
    m00 = m10 = m20 = m01 = m11 = m02 = 0.0
    if width < NARROW:
        for k in range(NODES.size):
            g, x = high - width * NODES[k], -NODES[k]
            d = WEIGHTS[k] * _density(g)
            m00 += d
            m10 += d * g
            m20 += d * g * g
            m01 += d * x
            m11 += d * g * x
            m02 += d * x * x
        return m00, m10, m20, m01, m11, m02
    low = high - width
    # the smaller tail keeps its digits
    inside = normal_cdf(high) - normal_cdf(low) if low < 0 else normal_cdf(-low) - normal_cdf(-high)
    dl, dh = _density(low), _density(high)
    first, second = dl - dh, inside
    if dl > 0:
        second += low * dl
    if dh > 0:
        second -= high * dh
    m01, m11 = (first - high * inside) / width, (second - high * first) / width
    m02 = (second - high * first - high * (first - high * inside)) / (width * width)
    return inside / width, first / width, second / width, m01 / width, m11 / width, m02 / width


@njit(cache=True, nogil=True)
def _hinge_sums(label, weight, query_mean, signal_mean, spread, query_variance, om, m, b, sig, v):  # type: ignore[no-untyped-def]
    """With t = y r = mu + S g, the slope is -1 below t = 1 - rho V, rises evenly from there to t = 1, and is 0 above."""
    gradient, hessian, size, loss = np.zeros(5), np.zeros((5, 5)), 0.0, 0.0
    dmean, dnoise = np.zeros(4), np.zeros(4)
    for i in range(label.size):
        rho, y, w = spread[i], label[i], weight[i]
        noise = math.sqrt(query_variance * om * om + rho * (m * m + sig * sig))
        high = (1 - y * (om * query_mean[i] + m * signal_mean[i] + b)) / noise
        width = rho * v / noise
        low = high - width
        b00, b10, b20, b01, b11, b02 = _bend_moments(high, width)
        under = normal_cdf(low)
        slope, slope2 = -under + width * b01, under + width * b02
        loss += w * noise * max(low * under + _density(low), 0.0)
        size -= w * slope
        dmean[0], dmean[1], dmean[2] = y * query_mean[i], y * signal_mean[i], y
        dnoise[0], dnoise[1], dnoise[3] = query_variance * om / noise, rho * m / noise, rho * sig / noise
        for p in range(4):
            gradient[p] += w * (slope * dmean[p] + b00 * dnoise[p])
            hessian[4, p] -= w * rho / noise * (b01 * dmean[p] + b11 * dnoise[p])
            for q in range(p + 1):
                bent = (
                    b00 * dmean[p] * dmean[q]
                    + b10 * (dmean[p] * dnoise[q] + dnoise[p] * dmean[q])
                    + (b20 - b00) * dnoise[p] * dnoise[q]
                )
                hessian[p, q] += w / noise * bent
        hessian[0, 0] += w * b00 / noise * query_variance
        hessian[1, 1] += w * b00 / noise * rho
        hessian[3, 3] += w * b00 / noise * rho
        hessian[4, 4] += w * rho * rho / noise * b02
        gradient[4] -= 0.5 * w * rho * slope2
    for p in range(5):
        for q in range(p):
            hessian[q, p] = hessian[p, q]
    return gradient, hessian, size, loss
