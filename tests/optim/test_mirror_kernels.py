from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whichtoken.optim.mirror_descent import mirror_step, power_sum

EXPONENTS = [1.05, 1.1, 1.3, 1.5, 5 / 3, 1.75, 2.5, 3.0, 4.0]
SIZES = [1, 7, 1024, 1025, 5000]


def inverse_exponent(p):
    """1 / (p - 1), but 10 for p = 1.1, whose float64 gives 9.99999999999999."""
    meant = 1 / (Fraction(p).limit_denominator(1000) - 1)
    return float(meant) if meant.denominator <= 2 else 1 / (p - 1)


def signed_power(values, exponent):
    wide = values.astype(np.float64)
    return np.copysign(np.abs(wide) ** exponent, wide)


def image(dual, p):
    """The kernel's W for a given U: a step of length zero from a W that is not yet the image of U would derive U anew."""
    weights = np.zeros_like(dual)
    mirror_step(weights, -dual, np.zeros_like(dual), p, 1.0)
    return weights


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_are_the_power_of_the_dual(p, dtype):
    rng = np.random.default_rng(0)
    dual = (rng.choice([-1, 1], 20000) * np.exp2(rng.uniform(-6, 3, 20000))).astype(dtype)
    expected = signed_power(dual, inverse_exponent(p))
    info = np.finfo(dtype)
    normal = (np.abs(expected) > info.tiny) & (np.abs(expected) < 0.7 * info.max)
    error = np.abs(image(dual, p)[normal] / expected[normal] - 1)
    assert normal.mean() > 0.5
    # the dual itself is only known to half a unit in the last place, which the power multiplies by 1/(p-1)
    assert error.max() < (1 + 1 / (p - 1)) * info.eps


@pytest.mark.parametrize("p", [1.05, 1.3, 1.75, 3.0, 4.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_infinity_and_nan_are_their_own_powers(p, dtype):
    special = np.array([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], dtype=dtype)
    np.testing.assert_array_equal(image(special, p), special)


@pytest.mark.parametrize("p", [1.01, 1.3, 1.07])
def test_powers_too_small_become_zero_and_those_too_large_are_not_taken(p):
    direction = np.array([1e-37, -1e-37, 1e37, -1e37, np.inf, 0.5], dtype=np.float32)
    weights, dual = np.ones_like(direction), np.ones_like(direction)
    weights[:2] = dual[:2] = 0.0
    assert mirror_step(weights, direction, dual, p, 1.0) == (2, 1)
    np.testing.assert_allclose(weights, [0, 0, 1, 1, -np.inf, 0.5 ** (1 / (p - 1))], rtol=1e-5)
    np.testing.assert_array_equal(dual, np.array([-1e-37, 1e-37, 1, 1, -np.inf, 0.5], dtype=np.float32))


@given(
    weights=arrays(np.float32, 40, elements=st.floats(-4, 4, width=32)),
    moved=arrays(np.bool_, 40),
    p=st.sampled_from(EXPONENTS),
)
def test_only_entries_changed_from_outside_are_derived_anew(weights, moved, p):
    dual = np.zeros_like(weights)
    nothing = np.zeros_like(weights)
    mirror_step(weights, nothing, dual, p, 1.0)  # now W is the image of U
    kept = dual.copy()
    weights[moved] += np.float32(1.0)
    target = weights.copy()
    mirror_step(weights, nothing, dual, p, 1.0)
    np.testing.assert_array_equal(dual[~moved], kept[~moved])
    np.testing.assert_allclose(weights, target, rtol=3e-7 * (2 + 1 / (p - 1)), atol=1e-37)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", [1.1, 1.3, 3.0])
def test_cutting_into_pieces_changes_nothing(size, p):
    rng = np.random.default_rng(size)
    weights, gradient = rng.standard_normal((2, size)).astype(np.float32)
    whole, pieces = (weights.copy(), np.zeros_like(weights)), (weights.copy(), np.zeros_like(weights))
    for _ in range(3):
        mirror_step(whole[0], gradient, whole[1], p, 0.01)
        for part in (slice(0, size // 3), slice(size // 3, size)):
            mirror_step(pieces[0][part], gradient[part], pieces[1][part], p, 0.01)
    np.testing.assert_array_equal(pieces[0], whole[0])
    np.testing.assert_array_equal(pieces[1], whole[1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exponent", [1.5, 11.0, 13 / 3])
def test_power_sum_adds_in_double_precision(size, exponent):
    values = np.random.default_rng(size).uniform(-1, 1, size).astype(np.float32)
    expected = np.sum(np.abs(values.astype(np.float64)) ** exponent)
    assert power_sum(values, exponent) == pytest.approx(expected, rel=(1 + exponent) * 2.0**-23)
