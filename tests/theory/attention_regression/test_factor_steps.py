import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.theory.attention_regression import imbalance, population_loss
from whichtoken.theory.attention_regression.structure_aware_descent import (
    balance_exactly,
    balance_penalty,
    covariance_step,
    gram_step,
    noise_damping,
    rescale_logits,
)
from whichtoken.theory.attention_regression.whitening import Whitening

P_REFERENCE = np.array([[1.0, 0, 2], [0, 1, -1]])
Q_REFERENCE = np.array([[0.1, 0.2, 0], [0, 0.3, -0.1], [0.2, 0, 0.1]])
seeds = st.integers(0, 2**32 - 1)


def random_factors(seed, outputs=3, dim=4):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((outputs, dim)), rng.standard_normal((dim, dim)), rng.standard_normal((outputs, dim))


def test_reference_values():
    assert balance_penalty(P_REFERENCE, Q_REFERENCE)[0] == pytest.approx(0.25728571428571423, rel=1e-13)
    assert balance_penalty(3 * P_REFERENCE, Q_REFERENCE / 3)[0] == pytest.approx(0.25728571428571423, rel=1e-13)
    assert noise_damping(0.05, 2, 3, 100, 1.5) == pytest.approx(0.04690174004250531, rel=1e-13)
    _, Q = rescale_logits(P_REFERENCE, Q_REFERENCE, 0.3, 0.5)
    np.testing.assert_allclose(Q, 0.6708203932499368 * Q_REFERENCE, rtol=1e-13)


@given(seed=seeds)
@settings(max_examples=20)
def test_penalty_gradient_matches_finite_differences(seed):
    P, Q, _ = random_factors(seed)
    dP, dQ, _ = random_factors(seed + 1)
    _, P_gradient, Q_gradient = balance_penalty(P, Q)
    ahead, behind = (balance_penalty(P + h * dP, Q + h * dQ)[0] for h in (1e-5, -1e-5))
    slope = np.sum(P_gradient * dP) + np.sum(Q_gradient * dQ)
    assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-6)


@given(seed=seeds)
@settings(max_examples=50)
def test_exact_balance_keeps_the_map_and_the_scale(seed):
    P, Q, _ = random_factors(seed)
    Pb, Qb = balance_exactly(P, Q)
    np.testing.assert_allclose(Pb @ Qb.T, P @ Q.T, atol=1e-10)
    assert np.linalg.norm(Pb) / np.linalg.norm(Qb) == pytest.approx(np.linalg.norm(P) / np.linalg.norm(Q))
    assert imbalance(Pb, Qb) < 1e-10
    again = balance_exactly(Pb, Qb)
    np.testing.assert_allclose(again[0], Pb, atol=1e-9)
    np.testing.assert_allclose(again[1], Qb, atol=1e-9)


@given(seed=seeds, logit_norm=st.floats(0.05, 3.0))
@settings(max_examples=50)
def test_renormalized_logits_respect_both_bounds_and_the_map_stays(seed, logit_norm):
    P, Q, _ = random_factors(seed)
    Pr, Qr = rescale_logits(P, Q, logit_norm, 0.5)
    np.testing.assert_allclose(Pr @ Qr.T, P @ Q.T, atol=1e-12)
    assert np.linalg.norm(Qr) <= logit_norm * (1 + 1e-12)
    assert np.linalg.norm(Qr, 2) <= 0.5 * (1 + 1e-12)
    assert np.linalg.norm(Qr) == pytest.approx(logit_norm) or np.linalg.norm(Qr, 2) == pytest.approx(0.5)


@given(seed=seeds, scale=st.floats(0.01, 100.0), damping=st.sampled_from([0.0, 0.1]))
@settings(max_examples=50)
def test_steps_do_not_depend_on_the_scale_between_the_factors(seed, scale, damping):
    P, Q, target = random_factors(seed)
    maps = []
    for value, key_query in ((P, Q), (P * scale, Q / scale)):
        _, *gradients = population_loss(value, key_query, target)
        moved = (
            gram_step(value, key_query, *gradients, 0.3, damping),
            covariance_step(value, key_query, *gradients, 0.5, 0.25),
        )
        maps.append([new_value @ new_key_query.T for new_value, new_key_query in moved])
    for first, second in zip(*maps, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-7 * np.abs(first).max())


def test_undamped_gram_steps_shrink_every_direction_alike():
    rng = np.random.default_rng(0)
    target = np.diag([1.0, 1e-1, 1e-3])
    P, Q = np.diag([1.0, 0.3, 0.03]), np.diag([1.0, 0.3, 0.03])
    P = P + 1e-6 * rng.standard_normal((3, 3)) @ P
    before = P @ Q.T - target
    _, *gradients = population_loss(P, Q, target)
    P, Q = gram_step(P, Q, *gradients, 0.25, 0.0)
    relative = (P @ Q.T - target) @ np.linalg.inv(target), before @ np.linalg.inv(target)
    np.testing.assert_allclose(relative[0] / relative[1], 0.5, rtol=0.2)


@pytest.mark.parametrize("step", ["gram", "covariance"])
def test_raw_and_whitened_updates_are_equal(step):
    """The updates of A and B written with Sigma, against the whitened ones."""
    inverse = np.linalg.inv
    root = np.random.default_rng(1).standard_normal((4, 4))
    sigma = root @ root.T + np.eye(4)
    whitening = Whitening.from_covariance(sigma)
    P, Q, target = random_factors(2, outputs=4)
    A, B = whitening.to_raw(P, Q)
    residual = A @ sigma @ B.T - target @ whitening.inverse_root  # F = 1/2 |residual Sigma^(1/2)|^2
    A_gradient, B_gradient = residual @ sigma @ B @ sigma, sigma @ residual.T @ A @ sigma
    _, *gradients = population_loss(P, Q, target)
    if step == "gram":
        moved = gram_step(P, Q, *gradients, 0.4, 0.0)
        A_new = A - 0.4 * A_gradient @ inverse(sigma @ B.T @ sigma @ B @ sigma)
        B_new = B - 0.4 * inverse(sigma) @ B_gradient @ inverse(sigma @ A.T @ A @ sigma)
    else:
        moved = covariance_step(P, Q, *gradients, 0.4, 0.0)
        ratio = np.linalg.norm(P) / np.linalg.norm(Q)
        length = 0.4 / (np.linalg.norm(P, 2) ** 2 / ratio + np.linalg.norm(Q, 2) ** 2 * ratio)
        A_new = A - length * ratio * A_gradient @ inverse(sigma)
        B_new = B - length / ratio * inverse(sigma) @ B_gradient @ inverse(sigma)
    A_found, B_found = whitening.to_raw(*moved)
    np.testing.assert_allclose(A_found, A_new, rtol=0, atol=1e-12)
    np.testing.assert_allclose(B_found, B_new, rtol=0, atol=1e-12)
