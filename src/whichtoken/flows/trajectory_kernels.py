"""The compiled loop behind `attention_descent`: compose W, take its gradient, call the optimizer's step on each matrix.

Parameters lie in one flat array, block after block. The blocks are heads (each its own key-query matrix), one matrix for all
heads, or factors whose product is the key-query matrix of a single head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from whichtoken.attention.kernels import NO_NULL, shortfall_of, weigh
from whichtoken.flows.attention_kernels import look, pull
from whichtoken.flows.mirror_steps import LOG_HUGE
from whichtoken.flows.steps.settings import READ, STEP


@njit(cache=True, nogil=True)
def head_gradient(
    tokens: Any, queries: Any, class_scores: Any, labels: Any, weights: Any, log_size: float, log_slope: Any, selected: Any,
    descent: Any,
) -> float:  # fmt: skip
    """Write the descent direction of every head and return the logarithm of its factor, -inf where it vanishes.

    Parameters
    ----------
    tokens, queries : (n, T, d) and (n, d)
    class_scores : (n, T, C)
        y_i v.x_it if C = 1, else v_c.x_it.
    labels : (n,)
        Read if C > 1.
    weights : (heads, d, d)
        W, divided by exp(log_size).
    log_slope
        Of the loss, called if C = 1.
    selected, descent : (heads, n) and (heads d, d)
        Written: winning tokens; -dL/dW, divided by the exponential of what is returned.
    """
    sequences, length, dim = tokens.shape
    heads = len(weights)
    size = math.exp(min(log_size, LOG_HUGE))
    keys = np.empty((heads, sequences, dim))
    for h in range(heads):
        keys[h] = np.dot(queries, weights[h].T)
    log_pulls, signs = np.empty((heads, sequences, length)), np.empty((heads, sequences, length))
    shares, totals = np.empty((heads, length)), np.empty(heads)
    for i in range(sequences):
        for h in range(heads):
            selected[h, i], totals[h] = look(tokens[i], keys[h, i], size, log_pulls[h, i], shares[h])
        gamma, slope = _token_scores(class_scores[i], labels[i], selected[:, i], shares, totals, log_slope)
        for h in range(heads):
            winner = selected[h, i]
            highest, shortfall = shortfall_of(gamma, None, shares[h], winner, 0.0, totals[h])
            factor = slope - math.log(totals[h])
            pull(tokens[i], gamma, winner, highest, shortfall, factor, log_pulls[h, i], signs[h, i])
    largest = log_pulls.max()
    if largest == -math.inf:
        descent[:] = 0.0
        return -math.inf
    moves = np.zeros((sequences, dim))
    for h in range(heads):
        moves[:] = 0.0
        for i in range(sequences):
            for t in range(length):
                factor = signs[h, i, t] * math.exp(log_pulls[h, i, t] - largest)
                for j in range(dim):
                    moves[i, j] += factor * (tokens[i, t, j] - tokens[i, selected[h, i], j])
        descent[h * dim : (h + 1) * dim] = np.dot(moves.T, queries)
    return float(largest - math.log(sequences * heads))


@njit(cache=True, nogil=True)
def _token_scores(
    class_scores: Any, label: int, winners: Any, shares: Any, totals: Any, log_slope: Any
) -> tuple[Any, float]:
    """What each token adds to -loss per unit of output: gamma (T,), and the logarithm of the factor before it."""
    length, classes = class_scores.shape
    heads = len(winners)
    outputs = np.zeros(classes)
    for c in range(classes):
        for h in range(heads):
            highest, shortfall = shortfall_of(class_scores[:, c], None, shares[h], winners[h], 0.0, totals[h])
            outputs[c] += (highest - shortfall) / heads
    if classes == 1:
        return class_scores[:, 0].copy(), log_slope(outputs[0])
    probabilities = np.empty(classes)
    _, _, total = weigh(outputs, None, None, NO_NULL, probabilities)
    gamma = np.zeros(length)
    for t in range(length):
        for c in range(classes):  # v_y - sum_c p_c v_c: differences to the own class, so that p near 1 loses nothing
            gamma[t] += probabilities[c] / total * (class_scores[t, label] - class_scores[t, c])
    return gamma, 0.0


_FLOAT, _INT, _INTS = types.float64, types.int64, types.int64[::1]
_VECTOR, _MATRIX, _TABLE = types.float64[::1], types.float64[:, ::1], types.float64[:, :, ::1]
_SIGNATURE = types.Tuple((types.int64[:, ::1], _INT))(  # type: ignore[no-untyped-call]
    _TABLE, _MATRIX, _TABLE, _INTS, types.FunctionType(_FLOAT(_FLOAT)), _VECTOR, _INTS, types.int64[:, ::1], _VECTOR, _INTS,
    _INT, types.boolean, types.FunctionType(STEP), types.FunctionType(READ), _VECTOR, _FLOAT, _FLOAT, _INT, _INTS,
    _MATRIX, _VECTOR, _MATRIX,
)  # fmt: skip


@njit(cache=True, nogil=True)
def _factor_descents(parameters: Any, starts: Any, shapes: Any, whole: Any) -> Any:
    """Of W = A_1 ... A_m: (A_1 ... A_{b-1})^T D (A_{b+1} ... A_m)^T for every b, one after the other."""
    descents, count = np.empty_like(parameters), len(shapes)
    for b in range(count):
        found = whole
        if b > 0:
            found = np.dot(_product(parameters, starts, shapes, 0, b).T, found)
        if b < count - 1:
            found = np.dot(found, _product(parameters, starts, shapes, b + 1, count).T)
        descents[starts[b] : starts[b + 1]] = found.ravel()
    return descents


@njit(cache=True, nogil=True)
def _product(parameters: Any, starts: Any, shapes: Any, first: int, last: int) -> Any:
    found = parameters[starts[first] : starts[first + 1]].reshape((shapes[first, 0], shapes[first, 1]))
    for b in range(first + 1, last):
        found = np.dot(found, parameters[starts[b] : starts[b + 1]].reshape((shapes[b, 0], shapes[b, 1])))
    return found


# with a full signature the steps come in as function pointers: the loop is compiled once for all optimizers
@njit(_SIGNATURE, cache=True, nogil=True)
def follow(
    tokens: Any, queries: Any, class_scores: Any, labels: Any, log_slope: Any, parameters: Any, starts: Any, shapes: Any,
    memory: Any, memory_starts: Any, heads: int, factored: bool, step_block: Any, read: Any, options: Any, lr: float,
    lr_power: float, steps: int, recorded: Any, kept: Any, kept_logs: Any, kept_parameters: Any,
) -> Any:  # fmt: skip
    """Follow the optimizer; return the winning tokens (heads, n) and when they last changed.

    Parameters
    ----------
    tokens, queries, class_scores, labels, log_slope : as in `head_gradient`
    parameters : (m,)
        All blocks one after the other, updated in place.
    starts, shapes : (b + 1,) and (b, 2)
        Where each block begins; its rows and columns.
    memory, memory_starts
        Zeros, as many as the optimizer asks for; where those of each block begin.
    factored
        Whether the blocks multiply to W.
    step_block, read
        Compiled, of the types STEP and READ.
    lr, lr_power
        Step k = 1, 2, ... has the size lr k^-lr_power.
    recorded : (r,)
        Step numbers, ascending.
    kept, kept_logs, kept_parameters : (r + 1, heads d d), (r + 1,) and (r + 1, m)
        Written: W divided by an exponential, its logarithm, the parameters; the last row is the final state.
    """
    sequences, _, dim = tokens.shape
    selected = np.zeros((heads, sequences), dtype=np.int64)
    previous = np.zeros_like(selected)
    logs = np.full((len(shapes), 4), -math.inf)
    flat, whole = np.empty(heads * dim * dim), np.empty((heads * dim, dim))
    last_change, row = 0, 0
    for step in range(steps + 1):
        if factored:
            log_size = 0.0
            flat[:] = _product(parameters, starts, shapes, 0, len(shapes)).ravel()
        else:
            log_size = read(parameters, logs[0], options, shapes[0, 0], shapes[0, 1], flat)
        if row < recorded.size and recorded[row] == step:
            kept[row], kept_logs[row], kept_parameters[row] = flat, log_size, parameters
            row += 1
        weights = flat.reshape((heads, dim, dim))
        log_scale = head_gradient(tokens, queries, class_scores, labels, weights, log_size, log_slope, selected, whole)
        if step > 0 and not np.array_equal(selected, previous):
            last_change = step
        previous[:] = selected
        if step == steps:
            kept[-1], kept_logs[-1], kept_parameters[-1] = flat, log_size, parameters
            break
        k = step + 1
        descents = _factor_descents(parameters, starts, shapes, whole) if factored else whole.copy().ravel()
        for b in range(len(shapes)):
            part = slice(starts[b], starts[b + 1])
            own = memory[memory_starts[b] : memory_starts[b + 1]]
            rows, columns = shapes[b, 0], shapes[b, 1]
            step_block(
                parameters[part], descents[part], log_scale, own, logs[b], options, lr * k**-lr_power, k, rows, columns
            )
    return selected, last_change
