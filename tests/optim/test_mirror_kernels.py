from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whichtoken.optim.mirror_descent import mirror_step as fused_step
from whichtoken.optim.mirror_descent import power_sum

EXPONENTS = [1.05, 1.1, 1.3, 1.5, 5 / 3, 1.75, 2.5, 3.0, 4.0]
SIZES = [1, 7, 1024, 1025, 5000]


def mirror_step(weights, direction, dual, p, lr):
    """A step that knows nothing of the last one."""
    digests = np.zeros(-(-dual.size // 1024), np.uint64)
    return fused_step(weights, direction, direction, dual, digests, p, lr, 0.0)


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


@pytest.mark.parametrize("p", [1.00002, 1.001, 1.02, 1.1, 1.3, 1.5, 1.75, 3.0, 7.3, 100.0])
def test_single_precision_is_within_two_units_of_fifty_digits(p):
    """Over the whole range: any bits, and numbers whose powers fill the range and leave it at both ends."""
    rng, exponent = np.random.default_rng(0), 1 / (p - 1)
    anything = rng.integers(0, 2**32, 200, dtype=np.uint32).view(np.float32)
    spread = np.exp2(np.clip(rng.uniform(-160, 135, 300) / exponent, -149, 127.9))
    below = rng.integers(1, 2**23, 50, dtype=np.uint32).view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-149, 2.0**-126, np.finfo(np.float32).max]
    dual = np.concatenate([anything, spread, below, special]).astype(np.float32)
    found = image(dual, p)
    with mpmath.workdps(50):
        for base, power in zip(dual.tolist(), found, strict=True):
            if not np.isfinite(base):
                np.testing.assert_array_equal(power, np.float32(base))
                continue
            exact = mpmath.mpf(abs(base)) ** mpmath.mpf(exponent)
            if exact >= mpmath.mpf(2) ** 128 * (1 - mpmath.mpf(2) ** -23):
                assert power == 0 or abs(power) > 0.99 * np.finfo(np.float32).max  # it would leave the range and stayed
                continue
            unit = float(np.spacing(np.float32(min(float(exact), float(np.finfo(np.float32).max)))))
            assert abs(mpmath.mpf(float(abs(power))) - exact) <= 2 * unit, (base, float(power), float(exact))
            assert np.signbit(power) == (base < 0) or power == 0


@pytest.mark.parametrize("size", [1, 2, 7, 1024, 1031])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "change",
    [np.negative, lambda w: 2 * w, lambda w: w[::-1].copy(), np.nextafter, lambda w: 0 * w],
    ids=["signs", "doubled", "reversed", "last bit of the last", "zeroed"],
)
def test_the_digest_of_a_block_sees_what_others_write(size, dtype, change):
    """A step that trusts the digests is the step that compares every entry."""
    rng = np.random.default_rng(size)
    weights, gradient = rng.standard_normal((2, size)).astype(dtype)
    dual, digests = np.zeros_like(weights), np.zeros(-(-size // 1024), np.uint64)
    for _ in range(2):
        fused_step(weights, gradient, gradient, dual, digests, 1.3, 0.01, 0.0)
    if change is np.nextafter:
        weights[-1] = np.nextafter(weights[-1], dtype(9))
    else:
        weights[:] = change(weights)
    other, other_dual = weights.copy(), dual.copy()
    fused_step(weights, gradient, gradient, dual, digests, 1.3, 0.01, 0.0)
    mirror_step(other, gradient, other_dual, 1.3, 0.01)
    np.testing.assert_array_equal(dual, other_dual)
    np.testing.assert_array_equal(weights, other)


def test_momentum_is_rounded_as_in_torch():
    rng = np.random.default_rng(0)
    weights, dual, buffer = np.zeros((3, 3000), dtype=np.float32)
    expected, digests = np.zeros_like(buffer), np.zeros(3, np.uint64)
    for _ in range(3):
        gradient = rng.standard_normal(3000).astype(np.float32)
        expected = np.float32(0.9) * expected + gradient
        fused_step(weights, gradient, buffer, dual, digests, 1.3, 0.01, 0.9)
    np.testing.assert_array_equal(buffer, expected)


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
