import numpy as np
import pytest

from whichtoken.margin.interior import PowerCurve

EXPONENTS = (1.05, 1.5, 2.0, 3.0, 10.0)


@pytest.mark.parametrize("p", EXPONENTS)
def test_primal_and_dual_are_inverse_maps(p):
    weights = np.array([-2.0, -1e-3, 0.0, 0.3, 1.0])
    np.testing.assert_allclose(PowerCurve(p).primal(PowerCurve(p).dual(weights)), weights, rtol=1e-10)


@pytest.mark.parametrize("p", EXPONENTS)
def test_dual_is_the_gradient_of_the_power(p):
    weights, step = np.array([-0.7, 0.2, 1.0]), 1e-6
    difference = (np.abs(weights + step) ** p - np.abs(weights - step) ** p) / (2 * step * p)
    np.testing.assert_allclose(PowerCurve(p).dual(weights), difference, rtol=1e-8)


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_move_stays_on_the_curve_and_is_tangent_to_it(p):
    curve, weights = PowerCurve(p), np.array([-0.9, -0.4, 0.6, 1.0])
    tangent = curve.tangent(weights, curve.dual(weights))
    change = np.array([0.3, -0.2, 0.1, 0.25]) * np.minimum(1.0, 1 / tangent.inverse_slope)
    errors = []
    for step in (1e-2, 1e-3):
        moved, dual = tangent.move(change, step)
        np.testing.assert_allclose(dual, curve.dual(moved), rtol=1e-10)
        off_weights = moved - weights - step * tangent.inverse_slope * change
        off_dual = dual - curve.dual(weights) - step * change
        errors.append(np.max(np.abs(np.concatenate([off_weights, off_dual]))))
    assert p == 2.0 or errors[1] <= errors[0] / 50  # the tangent is left quadratically


def test_trusted_step_bounds_the_move_by_the_size_of_the_curve():
    curve, weights = PowerCurve(1.1), np.array([1e-9, 0.5, 2.0])
    tangent = curve.tangent(weights, curve.dual(weights))
    change = np.array([50.0, -10.0, 3.0])
    moved, dual = tangent.move(change, tangent.trusted_step(change))
    flat = tangent.flat
    assert np.all(np.abs(moved - weights)[flat] <= 2.0 * (1 + 1e-12))
    assert np.all(np.abs(dual - curve.dual(weights))[~flat] <= 2.0**0.1 * (1 + 1e-12))
