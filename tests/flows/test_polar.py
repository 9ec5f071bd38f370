import numpy as np
import pytest

from whichtoken.flows.steps.muon import compose_svd, newton_schulz, polar_factor, thin_svd


def matrix(rows, columns, rank=None, decay=0.0, seed=0):
    """Random, with singular values that fall from 1 by `decay` orders of magnitude."""
    rng = np.random.default_rng(seed)
    rank = rank or min(rows, columns)
    left = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    return (left * np.logspace(0, -decay, rank)) @ right.T


SHAPES = [(1, 1), (10, 10), (10, 4), (4, 10), (30, 10), (40, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decay", [0.0, 3.0, 10.0])
def test_singular_values_are_those_of_lapack(shape, decay):
    given = matrix(*shape, decay=decay)
    left, values, right = thin_svd(given)
    np.testing.assert_allclose(compose_svd(left, values, right), given, rtol=0, atol=1e-14)
    expected = np.linalg.svd(given, compute_uv=False)
    np.testing.assert_allclose(np.sort(values)[::-1], expected, rtol=0, atol=1e-14)
    for vectors in (left, right):
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_directions_without_gradient_get_no_step(rank):
    given = matrix(10, 10, rank=rank, decay=2.0)
    found = polar_factor(given)
    values = np.linalg.svd(found, compute_uv=False)
    np.testing.assert_allclose(values, [1.0] * rank + [0.0] * (10 - rank), rtol=0, atol=1e-12)
    assert np.vdot(found, given) == pytest.approx(np.linalg.norm(given, "nuc"), rel=1e-13)


def test_nothing_has_no_direction():
    assert not polar_factor(np.zeros((3, 3))).any()


def test_newton_schulz_brings_singular_values_near_one():
    given = matrix(10, 6, decay=1.0)
    found = np.linalg.svd(newton_schulz(given / np.linalg.norm(given), 5), compute_uv=False)
    assert 0.6 < found.min() < found.max() < 1.3


def test_rounding_is_no_direction():
    """Gradients that are exactly of low rank, of all scales: rows that are nothing but rounding must not be divided by."""
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        rank = rng.integers(1, 8)
        left = rng.standard_normal((rank, 10)) * 10.0 ** -rng.uniform(0, 12, size=(rank, 1))
        found = polar_factor(left.T @ rng.standard_normal((rank, 10)))
        values = np.linalg.svd(found, compute_uv=False)
        assert np.all((values < 1e-6) | (np.abs(values - 1.0) < 1e-6)), values
