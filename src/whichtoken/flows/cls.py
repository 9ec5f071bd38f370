"""Gradient flow of the `<cls>` vector with embeddings held fixed, followed to where only its direction changes.

The loss falls like exp(-|p|) and real time grows like exp(|p|), so the flow runs in arc length, dp/ds = -grad / |grad|, and
the gradient comes from the log domain: differences to the winning token of each sequence, weights relative to the largest of
all. It then keeps its digits at a loss of 1e-100. One large first step stretches the embeddings along v, and the valley of the
loss becomes so narrow that only an implicit integrator with the exact derivative of the velocity stays in it.

========  =====================================================================
symbol    meaning
========  =====================================================================
p, v      `<cls>` vector and value vector, (d,)
E, S      embeddings (|S|, d) of the vocabulary S
a_s, g_s  score p.E_s and value v.E_s of a token
q_s       attention on token s, proportional to its count times exp(a_s)
f, y      output sum_s q_s g_s of a sequence and its label
z         coordinates of p in the span of the embeddings
========  =====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.integrate import BDF

from whichtoken.attention.kernels import NO_NULL, lead, shortfall_of, weigh_in_logs
from whichtoken.attention.losses import log_logistic, log_logistic_slope
from whichtoken.attention.pooling import NO_WINNER
from whichtoken.checks import check_count, check_range
from whichtoken.datasets.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import secondary_sets, selection_sets
from whichtoken.theory.trained_embeddings.one_step import as_parameters

Vector = NDArray[np.float64]
Indices = NDArray[np.int32]
Field = Callable[[float, Vector], Vector]
RECORDS = 16  # recorded points per decade of arc length
MOST_EVALUATIONS = 50_000  # hundreds are usual, thousands after a first step that has ruined the start
STEPS_TO_LOOK = 500  # at a minimum, unit speed goes back and forth for ever: look for one now and then
FIRST_RECORD = 0.1
ABSOLUTE_ERROR, RELATIVE_ERROR = 1e-9, 1e-5
STILL = 1e-6  # part of the state's size that a Newton step toward a minimum may have at most
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class ClsPath(Shown):
    """The way of p: position, loss and gradient at recorded arc lengths.

    Attributes
    ----------
    arc : (k,)
        Length of the way so far; the first entry is 0, the start.
    positions : (k, d)
    directions : (k, d)
        Unit vector -grad L / |grad L| at each position.
    log_losses : (k,)
        log of the mean logistic loss.
    counts : (n, |S|)
    embeddings : (|S|, d)
    evaluations : int
        Gradients computed.
    """

    arc: Vector
    positions: Vector
    directions: Vector
    log_losses: Vector
    counts: sparse.csr_array
    embeddings: Vector
    evaluations: int

    @property
    def scores(self) -> Vector:
        """a_s = p.E_s at the end, (|S|,)."""
        return np.asarray(self.embeddings @ self.positions[-1])

    @cached_property
    def selected(self) -> sparse.csr_array:
        """Selection sets at the end, (n, |S|) of bool."""
        return selection_sets(self.scores, self.counts)

    @cached_property
    def secondary(self) -> sparse.csr_array:
        """Secondary selection sets at the end (Definition 15), (n, |S|) of bool."""
        return secondary_sets(self.scores, self.counts)

    @property
    def increments(self) -> Vector:
        """Unit vectors from each recorded position to the next, (k - 1, d)."""
        return _unit(np.diff(self.positions, axis=0))

    def cosines(self, direction: ArrayLike) -> Vector:
        """Cosine of every position with a direction, (k,)."""
        return _unit(self.positions) @ _unit(np.asarray(direction, dtype=np.float64))

    def increment_cosines(self, direction: ArrayLike) -> Vector:
        """Cosine of every increment with a direction, (k - 1,): position is off by O(1/|p|), increment by its square."""
        return self.increments @ _unit(np.asarray(direction, dtype=np.float64))

    def _headline(self) -> str:
        return f"arc length {self.arc[-1]:.4g}, loss e^{self.log_losses[-1]:.4g}, {len(self.arc)} recorded points"


def cls_flow(
    embeddings: ArrayLike,
    cls: ArrayLike,
    value: ArrayLike,
    counts: Any,
    labels: ArrayLike,
    *,
    arc_length: float = 300.0,
) -> ClsPath:
    """Follow the gradient flow of p (equation (7)) over a given arc length.

    Parameters
    ----------
    embeddings : array_like of shape (|S|, d)
        E, one row per token; they stay fixed.
    cls : array_like of shape (d,)
        Where p starts.
    value : array_like of shape (d,)
        V, which stays fixed too.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    arc_length : float, default=300.0
        How far to go.

    Returns
    -------
    ClsPath
        Points of the path, the selected tokens, and cosines with a limit.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import cls_flow
    >>> from whichtoken.margin import selection_svm
    >>> E, counts = np.diag([3.0, -3.0, 0.5]) + 0.1, [[1, 0, 1], [0, 1, 1]]
    >>> path = cls_flow(E, np.zeros(3), np.array([1.0, 1.0, 0.0]), counts, [1, -1], arc_length=50.0)
    >>> limit = selection_svm(E, counts, path.selected)
    >>> bool(path.cosines(limit.direction)[-1] > 0.99)
    True
    """
    problem = _Problem.of(embeddings, cls, value, counts, labels)
    start = np.zeros(problem.dim)
    return problem.path(*_follow(problem.velocity, start, arc_length, problem.jacobian, problem.near_minimum))


def key_query_flow(
    embeddings: ArrayLike,
    cls: ArrayLike,
    value: ArrayLike,
    counts: Any,
    labels: ArrayLike,
    *,
    arc_length: float = 300.0,
) -> ClsPath:
    """Gradient flow of p and W together in softmax(p^T W E_X^T) E_X v, from W = I; positions are those of W^T p.

    Everything stays in the span U of the embeddings and p: p = U y and W = I + U M U^T, so that the state has (r + 1) r
    numbers, r <= |S| + 1. With p held fixed, W^T p would follow the flow of p itself, only |p|^2 times faster.
    """
    problem = _Problem.of(embeddings, cls, value, counts, labels)
    basis, _ = np.linalg.qr(np.column_stack([problem.start, problem.embeddings.T]))
    lift = np.ascontiguousarray(problem.embeddings @ basis)  # (|S|, r)
    within = replace(problem, start=np.zeros_like(problem.start), basis=basis, lift=lift, offset=0 * problem.offset)
    size = basis.shape[1]

    def query(state: Vector) -> Vector:
        y, M = state[:size], state[size:].reshape(size, size)
        return y + y @ M

    def velocity(_: float, state: Vector) -> Vector:
        gradient, _ = within.gradient(query(state))
        gradient = _unit(gradient)
        y, M = state[:size], state[size:].reshape(size, size)
        return -_unit(np.concatenate([gradient + M @ gradient, np.outer(y, gradient).ravel()]))

    first = np.concatenate([basis.T @ problem.start, np.zeros(size**2)])
    arc, states, evaluations = _follow(velocity, first, arc_length)
    return within.path(arc, np.array([query(state) for state in states]), evaluations)


def cls_descent(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike, *, lr: float, steps: int
) -> ClsPath:
    """Plain gradient descent on p, p <- p - lr grad L, recorded at geometrically spaced steps; arc is the way it made."""
    check_range("lr", lr, 0.0, math.inf)
    check_count("steps", steps, 1)
    problem = _Problem.of(embeddings, cls, value, counts, labels)
    record = set(np.geomspace(1, steps, 4 * RECORDS).astype(np.int64).tolist())
    state, arc = np.zeros(problem.dim), 0.0
    states, arcs = [state], [0.0]
    for step in range(1, steps + 1):
        gradient, log_scale = problem.gradient(state)
        move = -lr * math.exp(log_scale) * gradient
        state, arc = state + move, arc + float(np.linalg.norm(move))
        if step in record:
            states.append(state)
            arcs.append(arc)
    return problem.path(np.array(arcs), np.array(states), steps)


def _follow(
    velocity: Field, start: Vector, length: float, jacobian: Field | None = None,
    near_minimum: Callable[[Vector], bool] = lambda state: False,
) -> tuple[Vector, Vector, int]:  # fmt: skip
    """Arc lengths (k,), states (k, r), and the number of evaluations.

    `jacobian` is the derivative of the velocity, by differences where there is none; `near_minimum` says whether a state lies
    at a minimum.
    """
    check_range("arc_length", length, 0.0, math.inf)
    shortest = min(FIRST_RECORD, length / 10)
    records = np.geomspace(shortest, length, math.ceil(RECORDS * math.log10(length / shortest)) + 1)
    solver = BDF(velocity, 0.0, start, length, rtol=RELATIVE_ERROR, atol=ABSOLUTE_ERROR, jac=jacobian)
    states, steps = [start], 0
    for record in records:
        while solver.t < record and solver.status == "running":
            message, steps = solver.step(), steps + 1
            failed, spent = solver.status == "failed", solver.nfev > MOST_EVALUATIONS
            if (failed or spent or steps % STEPS_TO_LOOK == 0) and near_minimum(solver.y):
                raise ArithmeticError(
                    f"the flow comes to rest at arc length {solver.t:.4g}: the gradient vanishes there, the loss curves "
                    "upwards in every direction that changes it, and so it has a minimum at a finite p"
                )
            if failed or spent:
                raise ArithmeticError(
                    f"the flow could not be followed beyond arc length {solver.t:.4g}: "
                    + (message or f"{solver.nfev:,} gradients were not enough; try a shorter arc_length")
                )
        states.append(solver.y if solver.t == record else solver.dense_output()(record))
    return np.concatenate([[0.0], records]), np.array(states), solver.nfev


@dataclass(frozen=True, eq=False)
class _Problem:
    """The flow in coordinates z of the span of the embeddings: p = start + basis z, scores = offset + lift z."""

    start: Vector  # (d,)
    basis: Vector  # (d, r)
    lift: Vector  # (|S|, r)
    offset: Vector  # (|S|,)
    values: Vector  # (|S|,)
    counts: sparse.csr_array
    log_counts: Vector  # (nnz,)
    signs: Vector  # (n,)
    embeddings: Vector

    @classmethod
    def of(cls, embeddings: ArrayLike, p: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike) -> _Problem:
        E, start, v = as_parameters(embeddings, p, value)
        counts, signs = as_counts(counts), as_signs(labels).astype(np.float64)
        if counts.shape != (len(signs), len(E)):
            raise ValueError(f"counts of shape {counts.shape} must be ({len(signs)}, {len(E)}): labels by embeddings")
        basis, triangle = np.linalg.qr(E.T)  # orthonormal, so that lengths in z are lengths of p
        lift = np.ascontiguousarray(triangle.T)
        return cls(start, basis, lift, E @ start, E @ v, counts, np.log(counts.data), signs, E)

    @property
    def dim(self) -> int:
        return int(self.lift.shape[1])

    def gradient(self, state: Vector) -> tuple[Vector, float]:
        """The gradient in z is exp(second) times first."""
        pull, log_scale, _ = self._pull(state)
        return pull @ self.lift, log_scale

    def velocity(self, _: float, state: Vector) -> Vector:
        gradient, _ = self.gradient(state)
        return -_unit(gradient)

    def jacobian(self, _: float, state: Vector) -> Vector:
        """Derivative of the velocity, (r, r)."""
        gradient, curvature = self._slope_and_curvature(state)
        norm = np.linalg.norm(gradient)
        if norm == 0.0:
            return np.zeros_like(curvature)
        unit = gradient / norm
        return np.asarray((np.outer(unit, unit @ curvature) - curvature) / norm)

    def near_minimum(self, state: Vector) -> bool:
        """Whether a minimum is next to the state: Newton steps lead to it, and there the loss curves upwards.

        Directions in which all tokens of every sequence keep the same score change nothing and are left out.
        """
        first = self.counts.indices[self.counts.indptr[:-1]]
        differences = self.lift[self.counts.indices] - self.lift[np.repeat(first, np.diff(self.counts.indptr))]
        _, sizes, directions = np.linalg.svd(differences, full_matrices=False)
        within = directions[sizes > ROUNDING * sizes[0]].T  # (r, k)
        near = state
        for _ in range(3):
            gradient, curvature = self._slope_and_curvature(near)
            bends = within.T @ curvature @ within
            heights, axes = np.linalg.eigh(bends)
            if heights[0] <= ROUNDING * heights[-1]:
                return False
            near = near - within @ (axes @ ((axes.T @ (within.T @ gradient)) / heights))
        left = np.linalg.norm(self._slope_and_curvature(near)[0])
        moved = np.linalg.norm(near - state)
        return bool(moved <= STILL * (1 + np.linalg.norm(state)) and left <= ROUNDING * np.abs(curvature).max())

    def _slope_and_curvature(self, state: Vector) -> tuple[Vector, Vector]:
        """Gradient (r,) and Hessian (r, r), both over one and the same scale."""
        pull, log_scale, _ = self._pull(state)
        counts, scores = self.counts, self.offset + self.lift @ state
        curvature = token_curvature(
            scores, self.values, counts.indptr, counts.indices, self.log_counts, self.signs, log_scale
        )
        return pull @ self.lift, self.lift.T @ curvature @ self.lift

    def _pull(self, state: Vector) -> tuple[Vector, float, float]:
        counts, scores = self.counts, self.offset + self.lift @ state
        return token_pull(scores, self.values, counts.indptr, counts.indices, self.log_counts, self.signs)

    def path(self, arc: Vector, states: Vector, evaluations: int) -> ClsPath:
        positions = self.start + states @ self.basis.T
        directions = np.array([self.velocity(0.0, state) for state in states]) @ self.basis.T
        losses = np.array([self._pull(state)[2] for state in states])
        return ClsPath(arc, positions, directions, losses, self.counts, self.embeddings, evaluations)


def _unit(vectors: Vector) -> Vector:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)


@njit(cache=True, nogil=True)
def token_pull(
    scores: Vector, values: Vector, indptr: Indices, tokens: Indices, log_counts: Vector, signs: Vector
) -> tuple[Vector, float, float]:
    """dL / da for every token in the log domain: exp(second) times first, (|S|,); and the log of the loss.

    A sequence whose winner is k contributes r q_s (g_s - f) to the others and minus their sum to k. Nothing cancels however
    close q_k is to 1, because f itself comes from differences to g_k.
    """
    n = len(signs)
    log_weights, shares = np.empty(len(tokens)), np.empty(len(tokens))
    highest, shortfalls, log_residuals, log_losses = np.empty((4, n))
    winners, second = np.full(n, NO_WINNER), np.full(n, -np.inf)  # largest log q beside the winner's
    for x in range(n):
        start, stop = indptr[x], indptr[x + 1]
        part, logs = tokens[start:stop], log_weights[start:stop]
        top, null, total = weigh_in_logs(scores, part, log_counts[start:stop], NO_NULL, logs, shares)
        highest[x], shortfalls[x] = shortfall_of(values, part, shares, top, null, total)
        winners[x] = top
        for e in range(stop - start):
            if e != top:
                second[x] = max(second[x], logs[e])
        margin = signs[x] * (highest[x] - shortfalls[x])
        log_residuals[x], log_losses[x] = log_logistic_slope(margin), log_logistic(margin)
    log_scale = (log_residuals + second).max()
    if log_scale == -np.inf:  # no sequence has two tokens
        log_scale = 0.0
    pull = np.zeros(len(scores))
    for x in range(n):
        start, total = indptr[x], 0.0
        for e in range(indptr[x + 1] - start):
            if e != winners[x]:
                token = tokens[start + e]
                weight = math.exp(log_residuals[x] + log_weights[start + e] - log_scale)
                part_pull = -signs[x] / n * weight * lead(values[token], highest[x], shortfalls[x])
                pull[token] += part_pull
                total += part_pull
        if winners[x] != NO_WINNER:
            pull[tokens[start + winners[x]]] -= total
    peak = log_losses.max()
    return pull, log_scale, peak + math.log(np.exp(log_losses - peak).mean())


@njit(cache=True, nogil=True)
def token_curvature(
    scores: Vector, values: Vector, indptr: Indices, tokens: Indices, log_counts: Vector, signs: Vector, log_scale: float
) -> Vector:  # fmt: skip
    """d^2 L / da da of every two tokens over exp(log_scale), (|S|, |S|).

    With w the slopes of one sequence's loss, and h = g - f, its part is diag(w) - w q^T - q w^T - y sigma(y f) w (q h)^T. Every
    term carries a slope, so nothing over- or underflows at the scale that `token_pull` returns.
    """
    n, largest = len(signs), 0
    for x in range(n):
        largest = max(largest, indptr[x + 1] - indptr[x])
    logs, shares, slopes, weighted, weights = np.empty((5, largest))
    curvature = np.zeros((len(scores), len(scores)))
    for x in range(n):
        start, size = indptr[x], indptr[x + 1] - indptr[x]
        part = tokens[start : start + size]
        top, null, total = weigh_in_logs(scores, part, log_counts[start : start + size], NO_NULL, logs, shares)
        if top == NO_WINNER:
            continue
        highest, shortfall = shortfall_of(values, part, shares, top, null, total)
        margin = signs[x] * (highest - shortfall)
        log_residual, confidence = log_logistic_slope(margin), math.exp(log_logistic_slope(-margin))
        others = 0.0
        for e in range(size):
            weights[e] = math.exp(logs[e])
            ahead = lead(values[part[e]], highest, shortfall)
            weighted[e] = weights[e] * ahead
            if e != top:
                slopes[e] = -signs[x] / n * math.exp(log_residual + logs[e] - log_scale) * ahead
                others += slopes[e]
        weighted[top], slopes[top] = weights[top] * shortfall, -others
        for i in range(size):
            curvature[part[i], part[i]] += slopes[i]
            for j in range(size):
                curvature[part[i], part[j]] -= (
                    slopes[i] * weights[j] + weights[i] * slopes[j] + signs[x] * confidence * slopes[i] * weighted[j]
                )
    return curvature
