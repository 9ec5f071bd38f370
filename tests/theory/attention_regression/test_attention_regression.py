import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.datasets import AttentionRegression
from whichtoken.theory.attention_regression import (
    balanced_factors,
    excess_floor,
    finite_context_error,
    gauge_floor,
    gram_rate,
    imbalance,
    limit_map,
    population_loss,
)
from whichtoken.theory.attention_regression.whitening import Whitening

SPECTRUM = np.diag(3.0 ** (-np.arange(8) / 7))  # d = 8, condition number 3
matrices = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).standard_normal((4, 5)))


def attention_error(P, Q, context, queries):
    """Mean squared distance of softmax attention from the linear map, straight from the definition."""
    logits = queries @ Q @ context.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    outputs = (weights @ context) / weights.sum(axis=1, keepdims=True) @ P.T
    return np.mean(np.sum((outputs - queries @ Q @ P.T) ** 2, axis=1))


@pytest.mark.parametrize(
    ("logit_norm", "expected"), [(0.1, 2451.6), (0.5, 130.4), (0.75, 87.2), (1.0, 95.2), (1.25, 183.7)]
)
def test_matches_reference_values_for_plain_tokens(logit_norm, expected):
    assert 100 * finite_context_error(*balanced_factors(SPECTRUM, logit_norm), 100) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("logit_norm", "expected"), [(0.1, 27.9), (0.5, 33.5), (1.0, 71.0)])
def test_matches_reference_values_for_centered_tokens(logit_norm, expected):
    error = finite_context_error(*balanced_factors(SPECTRUM, logit_norm), 6400, centered=True)
    assert 6400 * error == pytest.approx(expected, abs=0.051)


@pytest.mark.parametrize("known", ["nothing", "mean", "covariance"])
def test_agrees_with_simulated_attention(known):
    rng = np.random.default_rng(0)
    P, Q = balanced_factors(SPECTRUM[:4, :4], 0.5)
    errors = []
    for _ in range(400):
        context = rng.standard_normal((600, 4))
        if known == "mean":
            context -= context.mean(axis=0)
        if known == "covariance":
            context = Whitening.from_tokens(context).whiten(context)
        errors.append(attention_error(P, Q, context, rng.standard_normal((50, 4))))
    predicted = finite_context_error(P, Q, 600, centered=known == "mean", whitened=known == "covariance")
    deviation = 4 * np.std(errors) / math.sqrt(len(errors))
    assert deviation < 0.2 * predicted
    assert np.mean(errors) == pytest.approx(predicted, abs=deviation + (1 - predicted.coverage) * predicted)


def test_coverage_tells_how_much_of_the_error_a_context_shows():
    """Reference: simulated errors over the formula, 100 to 6400 tokens at |Q|_F = 1 and 1.25."""
    for logit_norm, shares in ((1.0, [0.75, 0.88, 0.944, 0.958]), (1.25, [0.40, 0.54, 0.635, 0.715])):
        factors = balanced_factors(SPECTRUM, logit_norm)
        found = [finite_context_error(*factors, context).coverage for context in (100, 400, 1600, 6400)]
        np.testing.assert_allclose(found, shares, atol=0.05)


def test_coverage_is_too_high_in_few_dimensions_and_for_contexts_of_known_moments():
    """What the class says of its estimate; 300 contexts showed 0.32, 0.28 and 0.22 where it says 0.45."""
    rng = np.random.default_rng(0)
    P, Q = balanced_factors(SPECTRUM[:4, :4], 1.0)
    Q, P = Q * 0.63 / np.linalg.norm(Q, 2), P * np.linalg.norm(Q, 2) / 0.63
    errors = []
    for _ in range(100):
        context, queries = rng.standard_normal((400, 4)), rng.standard_normal((100, 4))
        contexts = context, context - context.mean(axis=0), Whitening.from_tokens(context).whiten(context)
        errors.append([attention_error(P, Q, each, queries) for each in contexts])
    kinds = {}, {"centered": True}, {"whitened": True}
    predicted = [finite_context_error(P, Q, 400, **kind) for kind in kinds]
    plain, centered, whitened = np.mean(errors, axis=0) / predicted
    assert whitened < centered - 0.03 < plain - 0.06 < predicted[0].coverage - 0.12


def test_refuses_logits_beyond_the_bound():
    P, Q = balanced_factors(SPECTRUM, 1.6)
    with pytest.raises(ValueError, match=r"operator norm 0\.7211, .* needs less than 1/sqrt\(2\)"):
        finite_context_error(P, Q, 100)
    with pytest.raises(ValueError, match="context=1 "):
        finite_context_error(P / 2, Q / 2, 1)
    with pytest.raises(ValueError, match=r"\(8, 8\) and Q \(7, 7\)"):
        finite_context_error(P, Q[:7, :7], 100)


def test_context_error_is_a_float_that_survives_copies():
    error = finite_context_error(*balanced_factors(SPECTRUM, 1.0), 100)
    for twin in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (twin, twin.coverage) == (error, error.coverage)


@given(target=matrices, scale=st.floats(0.1, 2.0))
@settings(max_examples=50)
def test_balanced_factors_reproduce_the_map_and_are_balanced(target, scale):
    P, Q = balanced_factors(target, scale)
    np.testing.assert_allclose(P @ Q.T, target, atol=1e-12)
    assert np.linalg.norm(Q) == pytest.approx(scale)
    assert imbalance(P, Q) < 1e-12
    assert np.linalg.norm(P) * np.linalg.norm(Q) == pytest.approx(np.linalg.norm(target, "nuc"))


@given(target=matrices, seed=st.integers(0, 100))
@settings(max_examples=30)
def test_no_gauge_beats_the_floor_of_balanced_factors(target, seed):
    """As the logits shrink, n times the centered error tends to the nuclear-norm floor, and to more in any other gauge."""
    balanced = balanced_factors(target, 1e-3)
    assert 100 * finite_context_error(*balanced, 100, centered=True) == pytest.approx(gauge_floor(target), rel=1e-4)
    change = np.eye(5) + 0.3 * np.random.default_rng(seed).standard_normal((5, 5))
    P, Q = balanced[0] @ change, balanced[1] @ np.linalg.inv(change).T
    Q, P = Q * 1e-3 / np.linalg.norm(Q), P / 1e-3 * np.linalg.norm(Q)
    assert 100 * finite_context_error(P, Q, 100, centered=True) >= gauge_floor(target) * (1 - 1e-6)


def test_limit_map_is_the_same_in_raw_and_whitened_coordinates():
    rng = np.random.default_rng(1)
    problem = AttentionRegression(5, 3, covariance=50.0).sample(rng)
    P, Q = rng.standard_normal((3, 5)), rng.standard_normal((5, 5))
    whitening = Whitening.from_covariance(problem.covariance)
    A, B = whitening.to_raw(P, Q)
    np.testing.assert_allclose(limit_map(A, B, problem.covariance) @ whitening.root, P @ Q.T, atol=1e-12)


def test_population_gradient_matches_finite_differences():
    rng = np.random.default_rng(2)
    P, Q, Y = rng.standard_normal((3, 4)), rng.standard_normal((4, 4)), rng.standard_normal((3, 4))
    _, P_gradient, Q_gradient = population_loss(P, Q, Y)
    dP, dQ = rng.standard_normal(P.shape), rng.standard_normal(Q.shape)
    ahead, behind = (population_loss(P + h * dP, Q + h * dQ, Y)[0] for h in (1e-5, -1e-5))
    assert (ahead - behind) / 2e-5 == pytest.approx(np.sum(P_gradient * dP) + np.sum(Q_gradient * dQ), rel=1e-8)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (gram_rate([3.0, 1.0, 0.001], 0.1), 0.64),
        (gram_rate([3.0, 1.0, 0.001], 0.25), 0.25),
        (gram_rate([2.0, 1.0], 0.25, dim=4), 0.5625),
        (gram_rate([2.0, 1.0], 0.5, dim=4), 0.25),
        (gram_rate([1.0, 0.5], 0.5, damping=0.5), 0.25),
    ],
)
def test_rates(rate, expected):
    assert rate == pytest.approx(expected)


@pytest.mark.parametrize(("outputs", "dim"), [(5, 3), (3, 5), (1, 4), (4, 1), (3, 3)])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_rates_are_those_of_the_linearized_error(outputs, dim, damping):
    """Reference: the largest eigenvalue of the map E -> E - eta (E Pi_Q + Pi_P E), written out as a matrix."""
    sizes = np.geomspace(2.0, 0.5, min(outputs, dim))
    Y = np.zeros((outputs, dim))
    np.fill_diagonal(Y, sizes)
    P, Q = balanced_factors(Y)

    def slowest(left, right, step):
        shrink = np.eye(outputs * dim) - step * (np.kron(left, np.eye(dim)) + np.kron(np.eye(outputs), right))
        return np.abs(np.linalg.eigvalsh(shrink)).max() ** 2

    def damped(factor):
        return factor @ np.linalg.pinv(factor.T @ factor + damping * sizes[0] * np.eye(dim)) @ factor.T

    assert gram_rate(sizes, 0.25, damping, dim, outputs) == pytest.approx(slowest(damped(P), damped(Q), 0.25))


@pytest.mark.parametrize("sizes", [[], [1.0, 0.0], [1.0, math.nan]])
def test_a_rate_needs_a_map_of_full_rank(sizes):
    with pytest.raises(ValueError, match=r"singular_values=\[.*\] must be a list of positive numbers"):
        gram_rate(sizes, 0.25)
    with pytest.raises(ValueError, match="dim=4 and outputs=3 must not both exceed the 2 singular values"):
        gram_rate([1.0, 2.0], 0.25, dim=4, outputs=3)


def test_floors_are_ordered_and_fall_as_one_over_n():
    population, stored, fresh = (
        excess_floor(kind, SPECTRUM, 0.1, 500, 0.3) for kind in ("population", "stored", "fresh")
    )
    assert stored < population < fresh
    assert excess_floor("fresh", SPECTRUM, 0.1, 1000, 0.3) == pytest.approx(fresh / 2)
    with pytest.raises(ValueError, match="kind='none' must be one of population, stored, fresh"):
        excess_floor("none", SPECTRUM, 0.1, 500, 0.3)


def test_short_logits_reach_the_error_of_least_squares():
    assert excess_floor("stored", SPECTRUM, 0.1, 500, 1e-4) == pytest.approx(0.5 * 0.1**2 * 8 * (8 + 1) / 500, rel=1e-6)
