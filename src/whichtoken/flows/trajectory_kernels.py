"""The compiled loop behind `attention_descent`: compose W, take its gradient, hand each matrix to its optimiser's step.

Parameters lie in one flat array, block after block. The blocks are heads (each its own key-query matrix), one matrix for all
heads, or factors whose product is the key-query matrix of a single head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from whichtoken.flows.head_gradient import head_gradient
from whichtoken.flows.steps.settings import READ, STEP

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


# the signature is said in full so that steps come in as function pointers: the loop is compiled once for all optimisers
@njit(_SIGNATURE, cache=True, nogil=True)
def follow(
    tokens: Any,  # (n, T, d)
    queries: Any,  # (n, d)
    class_scores: Any,  # (n, T, C)
    labels: Any,  # (n,)
    log_slope: Any,
    parameters: Any,  # (m,), updated in place
    starts: Any,  # (b + 1,) where each block begins
    shapes: Any,  # (b, 2) rows and columns of each block
    memory: Any,  # zeros, as many as the optimiser wants
    memory_starts: Any,  # (b + 1,)
    heads: int,
    factored: bool,  # whether the blocks multiply to W
    step_block: Any,  # compiled, of type STEP
    read: Any,  # compiled, of type READ
    options: Any,
    lr: float,
    lr_power: float,  # step k = 1, 2, ... has the size lr k^-lr_power
    steps: int,
    recorded: Any,  # (r,) ascending
    kept: Any,  # (r + 1, h d d) out: W, divided by the exponential of
    kept_logs: Any,  # (r + 1,) out; the last row is the final state
    kept_parameters: Any,  # (r + 1, m) out
) -> Any:
    """Follow the optimiser; return the winning tokens (h, n) and when they last changed."""
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
