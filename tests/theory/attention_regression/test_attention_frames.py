"""Where heads of fewer outputs than features end: the theory of the chosen subspace, against brute force."""

import numpy as np
import pytest

from whichtoken.theory.attention_regression import balanced_factors, excess_floor, finite_context_error, start_floor
from whichtoken.theory.attention_regression.predictions import _residuals, _symmetric_normal, frame_error

SIZES = np.array([1.0, 0.4])


def test_squared_coefficients_are_the_mean_squared_error_of_the_polynomial():
    rng = np.random.default_rng(0)
    third, fourth = _symmetric_normal(5, 3, rng), _symmetric_normal(5, 4, rng)
    frame = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    P, Q = frame * np.sqrt(SIZES) / 0.5, frame * np.sqrt(SIZES) * 0.5  # columns: outputs, and queries in the basis of Y
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel()
    b = z @ Q.T  # (queries, 5)
    error = (np.einsum("ijk,nj,nk->ni", third, b, b) / 2 + np.einsum("ijkl,nj,nk,nl->ni", fourth, b, b, b) / 6) @ P
    linear = (mass[:, None, None] * error[:, :, None] * z[:, None, :]).sum(axis=0)  # (outputs, 2)
    error -= z @ linear.T  # training fits it
    found = _residuals(frame, [third, fourth], SIZES, logit_norm=0.5 * np.sqrt(SIZES.sum()))
    assert found @ found == pytest.approx(float(mass @ (error**2).sum(axis=1)), rel=1e-10)


def test_without_a_choice_it_is_the_closed_form():
    rng, short = np.random.default_rng(1), 1e-2  # short logits: the third cumulant alone
    draws = [np.sum(_residuals(np.eye(3, 2), [_symmetric_normal(3, 3, rng)], SIZES, short) ** 2) for _ in range(1000)]
    exact = finite_context_error(*balanced_factors(np.diag(SIZES), short), 100, whitened=True) * 100
    assert np.mean(draws) == pytest.approx(exact, rel=0.12)  # three standard errors


def test_few_outputs_find_a_subspace_where_the_cubic_form_vanishes():
    untrained, noise = 2 * start_floor(np.eye(1, 6), 0.01, 800, 0.3), 0.01**2 * 9 / 800
    assert frame_error(np.ones(1), 6, 0.0, 800, 0.3) < 0.005 * untrained
    # noise in seven coefficients of least squares, and in the two of the polynomial that turning the frame fits
    assert 2 * excess_floor("stored", np.eye(1, 6), 0.01, 800, 0.3) == pytest.approx(noise, rel=0.2)
    # five outputs of six cannot: 35 equations, 5 ways to turn
    assert 0.4 < excess_floor("stored", np.eye(5, 6), 0.01, 800, 0.3) / start_floor(np.eye(5, 6), 0.01, 800, 0.3) < 0.75


def test_trained_heads_of_one_output_end_there():
    from whichtoken.claims.attention_regression._training import TrainingSet
    from whichtoken.datasets import AttentionRegression
    from whichtoken.theory.attention_regression.structure_aware_descent import StructureAwareDescent, TokenObjective

    shares = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        problem = AttentionRegression(6, 1, tokens=250, noise=0.1).sample(rng)
        data = TrainingSet(problem, rng)
        solver = StructureAwareDescent(logit_norm=0.3, iterations=50, tolerance=0.0)
        final = solver.minimize(TokenObjective(data.Z, data.Y), *solver.starting_factors(data.Z, data.Y)).final
        untrained = 2 * start_floor(problem.whitened_target, 0.1, 250, 0.3) / data.size
        shares.append(data.stored(final.P, final.Q) / untrained)
    predicted = excess_floor("stored", problem.whitened_target, 0.1, 250, 0.3)
    predicted /= start_floor(problem.whitened_target, 0.1, 250, 0.3)
    assert np.mean(shares) == pytest.approx(predicted, abs=0.15)  # 1 at the start; the seeds scatter by 0.1
    assert predicted < 0.35
