"""Compiled l_p mirror step on flat arrays: one pass over memory, no temporary beyond a cache-sized block.

Every entry is computed from itself alone by the same instructions, so the result does not depend on how an array is cut
into pieces, and an image under the power map can be compared with `==`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

_BLOCK = 1024  # entries at a time: a block and its scratch space stay in the first-level cache

_MANTISSA_BITS = np.int32(23)  # of a float32
_EXPONENT_BIAS = np.int32(127)
_SQRT_HALF_BITS = np.float32(math.sqrt(0.5)).view(np.int32)
_ROUNDER = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the lowest bits
_ONE, _INFINITY, _SMALLEST_NORMAL = np.float32(1.0), np.float32(math.inf), np.float32(2.0**-126)
_LOWEST, _HIGHEST = np.float32(-127.0), np.float32(128.0)  # these powers of two are stored as zero and infinity


def _fit(function: Callable[[Any], Any], interval: tuple[float, float], degree: int) -> Iterator[np.float32]:
    """Coefficients of the polynomial through the Chebyshev points, ascending."""
    fitted = Chebyshev.interpolate(function, degree, interval).convert(kind=Polynomial, domain=(-1, 1), window=(-1, 1))
    return (np.float32(coefficient) for coefficient in fitted.coef)


# log2(m) = s (l_0 + l_1 s^2 + ...) with s = (m - 1) / (m + 1), and 2^r = e_0 + e_1 r + ..., both to 3e-9. One name per
# coefficient, because a loop over them would keep the compiler from vectorising over the entries.
_L0, _L1, _L2, _L3 = _fit(lambda z: 2.0 / math.log(2.0) * np.arctanh(np.sqrt(z)) / np.sqrt(z), (1e-12, 0.0295), 3)
_E0, _E1, _E2, _E3, _E4, _E5, _E6 = _fit(np.exp2, (-0.5, 0.5), 6)


@njit(cache=True, nogil=True, error_model="numpy")
def mirror_step(
    weights: NDArray[Any], direction: NDArray[Any], dual: NDArray[Any], p: float, lr: float
) -> tuple[int, int]:
    """U <- U - lr * direction, W <- sign(U) |U|^(1/(p-1)), in place.

    Where W is not the image of U, U is first derived from W. An entry whose U or W would leave the range of the dtype stays
    as it was.

    Parameters
    ----------
    weights, direction, dual : (n,)
        Contiguous, all float32 or all float64.
    p, lr
        Exponent of the geometry and step size.

    Returns
    -------
    tuple of int
        How many entries stayed, and in how many a finite W became infinite or NaN because the direction is.
    """
    block = min(_BLOCK, dual.size)
    image, preimage, scratch = np.empty(block, dual.dtype), np.empty(block, dual.dtype), np.empty(block, dual.dtype)
    rate, tiny, zero = dual.dtype.type(lr), np.finfo(dual.dtype).tiny, dual.dtype.type(0.0)
    stayed, spoiled = 0, 0
    for start in range(0, dual.size, _BLOCK):
        w, g, u = weights[start : start + _BLOCK], direction[start : start + _BLOCK], dual[start : start + _BLOCK]
        _signed_power(u, 1.0 / (p - 1.0), image, scratch)
        changed = 0
        for j in range(u.size):
            changed += image[j] != w[j]
            preimage[j] = u[j]
        if changed > 0:
            _signed_power(w, p - 1.0, preimage, scratch)
            for j in range(u.size):
                # below the smallest normal number devices and operations round differently
                underflow = abs(w[j]) < tiny and abs(image[j]) < tiny
                preimage[j] = u[j] if image[j] == w[j] or underflow else preimage[j]
        for j in range(u.size):
            preimage[j] -= rate * g[j]
        _signed_power(preimage, 1.0 / (p - 1.0), image, scratch)
        lost = 0
        for j in range(u.size):
            lost += image[j] - image[j] != zero  # infinite or NaN
        if lost == 0:
            for j in range(u.size):
                w[j], u[j] = image[j], preimage[j]
        else:
            for j in range(u.size):
                finite = image[j] - image[j] == zero
                before, given = w[j] - w[j] == zero, g[j] - g[j] == zero
                stayed += before and given and not finite
                spoiled += before and not given and not finite
                if finite or not before or not given:
                    w[j], u[j] = image[j], preimage[j]
    return stayed, spoiled


@njit(cache=True, nogil=True, error_model="numpy")
def power_sum(values: NDArray[Any], exponent: float) -> float:
    """Sum of |v|^exponent in float64, values of shape (n,)."""
    block = min(_BLOCK, values.size)
    powers, scratch = np.empty(block, values.dtype), np.empty(block, values.dtype)
    total = 0.0
    for start in range(0, values.size, _BLOCK):
        v = values[start : start + _BLOCK]
        _signed_power(v, exponent, powers, scratch)
        for j in range(v.size):
            total += np.float64(abs(powers[j]))
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _signed_power(values: Any, exponent: float, out: Any, scratch: Any) -> None:
    """out = sign(v) |v|^exponent; multiplications and a root where they suffice."""
    doubled = round(2.0 * exponent)
    if abs(2.0 * exponent - doubled) <= 1e-12 * doubled:  # 1 / (1.1 - 1) is 10 up to rounding
        _repeated_squaring(values, doubled, out, scratch)
    elif values.itemsize == 4:
        _vectorised_power(values, exponent, out)
    else:
        for j in range(values.size):
            out[j] = math.copysign(abs(values[j]) ** exponent, values[j])


@njit(cache=True, nogil=True, error_model="numpy")
def _repeated_squaring(values: Any, doubled: int, out: Any, scratch: Any) -> None:
    """out = sign(v) |v|^(doubled / 2)."""
    one = out.dtype.type(1.0)
    for j in range(values.size):
        scratch[j] = abs(values[j])
        out[j] = one if values[j] >= 0 else -one
    if doubled % 2 == 1:
        for j in range(values.size):
            out[j] *= math.sqrt(scratch[j])
    whole = doubled // 2
    while whole > 0:
        if whole % 2 == 1:
            for j in range(values.size):
                out[j] *= scratch[j]
        whole //= 2
        if whole > 0:
            for j in range(values.size):
                scratch[j] *= scratch[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _vectorised_power(values: Any, exponent: float, out: Any) -> None:
    """out = sign(v) |v|^exponent for float32, eight entries at a time; relative error about (1 + exponent) 2^-24.

    |v| = 2^k m with m between sqrt(1/2) and sqrt(2). The exponent is split into `high` + `low` so that high * k is exact:
    otherwise its rounding error would be multiplied by log2 of the result.
    """
    mantissa, scale = math.frexp(exponent)
    high = np.float32(math.ldexp(round(math.ldexp(mantissa, 15)), scale - 15))
    low, full = np.float32(exponent - high), np.float32(exponent)
    for j in range(values.size):
        size = np.float32(abs(values[j]))
        bits = size.view(np.int32)
        binade = np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
        m = np.int32(bits - np.int32(binade << _MANTISSA_BITS)).view(np.float32)
        k = np.float32(binade)
        s = (m - _ONE) / (m + _ONE)
        z = s * s
        log = s * (((_L3 * z + _L2) * z + _L1) * z + _L0)
        target = full * (k + log)
        target = target if target > _LOWEST else _LOWEST
        target = target if target < _HIGHEST else _HIGHEST
        rounded = np.float32(target + _ROUNDER)
        r = (high * k - (rounded - _ROUNDER)) + (low * k + full * log)
        power = (((((_E6 * r + _E5) * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
        power *= np.int32((rounded.view(np.int32) + _EXPONENT_BIAS) << _MANTISSA_BITS).view(np.float32)
        # 0, infinity and NaN are their own powers; so are, as good as zero, numbers too small for the bits to be read
        power = power if _SMALLEST_NORMAL <= size < _INFINITY else size
        out[j] = power if values[j] >= 0 else -power
