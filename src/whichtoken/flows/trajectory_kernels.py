"""The compiled loop behind `attention_descent`: compose W, take its gradient, call the optimizer's step on each matrix.

Parameters lie in one flat array, block after block: the key-query matrix, or factors whose product it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from whichtoken.flows.attention_kernels import weight_gradient
from whichtoken.flows.steps.settings import READ, STEP

_FLOAT, _INT, _INTS = types.float64, types.int64, types.int64[::1]
_VECTOR, _MATRIX, _TABLE = types.float64[::1], types.float64[:, ::1], types.float64[:, :, ::1]
_SIGNATURE = types.Tuple((_INTS, _INT))(  # type: ignore[no-untyped-call]
    _TABLE, _MATRIX, _MATRIX, types.FunctionType(_FLOAT(_FLOAT)), _VECTOR, _INTS, types.int64[:, ::1], _VECTOR, _INTS,
    types.boolean, types.FunctionType(STEP), types.FunctionType(READ), _VECTOR, _FLOAT, _FLOAT, _INT, _INTS,
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
    tokens: Any, queries: Any, gamma: Any, log_slope: Any, parameters: Any, starts: Any, shapes: Any, memory: Any,
    memory_starts: Any, factored: bool, step_block: Any, read: Any, options: Any, lr: float, lr_power: float, steps: int,
    recorded: Any, kept: Any, kept_logs: Any, kept_parameters: Any,
) -> Any:  # fmt: skip
    """Follow the optimizer; return the winning tokens (n,) and when they last changed.

    Parameters
    ----------
    tokens, queries, gamma, log_slope : as in `weight_gradient`
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
    kept, kept_logs, kept_parameters : (r + 1, d d), (r + 1,) and (r + 1, m)
        Written: W divided by an exponential, its logarithm, the parameters; the last row is the final state.
    """
    sequences, length, dim = tokens.shape
    selected = np.zeros(sequences, dtype=np.int64)
    previous = np.zeros_like(selected)
    attention, log_slopes = np.empty((sequences, length)), np.empty(sequences)
    logs = np.full((len(shapes), 4), -math.inf)
    flat = np.empty(dim * dim)
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
        descent, log_scale = weight_gradient(
            tokens, queries, gamma, 0.0, flat.reshape((dim, dim)), log_size, log_slope, selected, attention, log_slopes
        )
        if not descent.any():
            log_scale = -math.inf
        if step > 0 and not np.array_equal(selected, previous):
            last_change = step
        previous[:] = selected
        if step == steps:
            kept[-1], kept_logs[-1], kept_parameters[-1] = flat, log_size, parameters
            break
        k = step + 1
        descents = _factor_descents(parameters, starts, shapes, descent.reshape((dim, dim))) if factored else descent
        for b in range(len(shapes)):
            part = slice(starts[b], starts[b + 1])
            own = memory[memory_starts[b] : memory_starts[b + 1]]
            rows, columns = shapes[b, 0], shapes[b, 1]
            step_block(
                parameters[part], descents[part], log_scale, own, logs[b], options, lr * k**-lr_power, k, rows, columns
            )
    return selected, last_change
