import numpy as np
import pytest

from whichtoken.margin.geometry import SchattenNorm
from whichtoken.margin.interior import SpectralCurve
from whichtoken.norms import dual_exponent

EXPONENTS = (1.05, 1.5, 2.5, 10.0)


def matrix(seed=0, values=(1.5, 0.7, 0.2)):
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(2))
    return ((left * values) @ right).ravel()


def curve(p):
    return SpectralCurve(SchattenNorm(p, (3, 3)))


@pytest.mark.parametrize("p", EXPONENTS)
def test_primal_and_dual_are_inverse_maps(p):
    np.testing.assert_allclose(curve(p).primal(curve(p).dual(matrix())), matrix(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", EXPONENTS)
def test_dual_is_the_gradient_of_the_power(p):
    weights, change, step = matrix(), matrix(seed=1), 1e-6
    slope = (curve(p).power(weights + step * change) - curve(p).power(weights - step * change)) / (2 * step * p)
    assert curve(p).dual(weights) @ change == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("values", [(1.5, 0.7, 0.2), (1.0, 1.0, 0.4), (1.0, 1.0 + 1e-9, 1.0)], ids=str)
@pytest.mark.parametrize("p", EXPONENTS)
def test_a_move_stays_on_the_curve_and_is_tangent_to_it(p, values):
    weights = matrix(values=values)
    tangent = curve(p).tangent(weights, curve(p).dual(weights))
    change = 0.1 * matrix(seed=1)
    change /= max(1.0, np.abs(tangent.image(change)).max())
    errors = []
    for step in (1e-2, 1e-3):
        moved, dual = tangent.move(change, step)
        np.testing.assert_allclose(dual, curve(p).dual(moved), rtol=1e-8, atol=1e-10)
        off = np.concatenate(
            [moved - weights - step * tangent.image(change), dual - curve(p).dual(weights) - step * change]
        )
        errors.append(np.abs(off).max())
    assert errors[1] <= errors[0] / 50  # the tangent is left quadratically


@pytest.mark.parametrize("p", [1, 1.3, 4, np.inf])
def test_norm_and_dual_norm_meet_in_hoelders_inequality(p):
    norm, weights, other = SchattenNorm(p, (3, 3)), matrix(), matrix(seed=2)
    assert norm.dual().p == dual_exponent(p)
    assert abs(weights @ other) <= norm.of(weights) * norm.dual().of(other)
    assert norm.of(1e200 * weights) == pytest.approx(1e200 * norm.of(weights), rel=1e-12)


@pytest.mark.parametrize("p", [1, 1.3, 4, np.inf])
def test_bracket_holds_every_matrix_within_the_error(p):
    norm, weights, rng = SchattenNorm(p, (3, 3)), matrix(), np.random.default_rng(3)
    error = 0.01 * rng.random(9)
    low, high = norm.bracket(weights, error)
    for _ in range(200):
        assert low <= norm.of(weights + rng.choice([-1, 1], 9) * error) <= high
