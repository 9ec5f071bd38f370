"""Quasi-Newton steps: exact on quadratics, as good as a general-purpose minimizer, never upwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, rosen, rosen_der

from whichtoken.estimators.bags.training import _direction, quasi_newton


def quadratic(width, seed):
    """A convex quadratic of condition number about 100 and its minimizer."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((width, width)))
    curvature = (basis * np.geomspace(0.1, 10, width)) @ basis.T
    bottom = rng.standard_normal(width)

    def objective(x):
        gradient = curvature @ (x - bottom)
        return float(gradient @ (x - bottom)) / 2, gradient

    return objective, bottom


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(0, 100))
def test_a_quadratic_is_minimized(width, seed):
    objective, bottom = quadratic(width, seed)
    np.testing.assert_allclose(quasi_newton(objective, np.zeros(width), 200), bottom, atol=1e-3)


def test_the_metric_is_that_of_dense_bfgs():
    """The recursion against the updated inverse Hessian itself, also after the memory has wrapped around."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((6, 6))
    moves = rng.standard_normal((5, 6))
    changes = moves @ (root @ root.T + np.eye(6))
    gradient = rng.standard_normal(6)
    for stored in (1, 5, 7):
        order = [k % 5 for k in range(max(0, stored - 5), stored)]
        s, y = moves[order[-1]], changes[order[-1]]
        inverse = np.eye(6) * (s @ y) / (y @ y)
        for k in order:
            s, y = moves[k], changes[k]
            left = np.eye(6) - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
        np.testing.assert_allclose(_direction(moves, changes, stored, gradient), -inverse @ gradient, rtol=1e-9)


def test_a_curved_valley_ends_where_another_minimizer_ends():
    start = np.array([-1.2, 1.0, 0.5, 2.0])
    found = quasi_newton(lambda x: (float(rosen(x)), rosen_der(x)), start, 300)
    wanted = minimize(rosen, start, jac=rosen_der, method="BFGS", options={"gtol": 1e-10}).x
    np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 10])
def test_more_steps_are_never_worse(steps):
    start = np.array([-1.2, 1.0, 0.5, 2.0])

    def objective(x):
        return float(rosen(x)), rosen_der(x)

    fewer, more = (rosen(quasi_newton(objective, start, count)) for count in (steps, steps + 1))
    assert more < fewer
    assert steps > 0 or fewer == rosen(start)


def test_the_minimum_is_left_alone():
    objective, bottom = quadratic(4, 0)
    np.testing.assert_array_equal(quasi_newton(objective, bottom, 10), bottom)
