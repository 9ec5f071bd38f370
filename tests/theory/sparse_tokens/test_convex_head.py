"""Convex heads: first-order conditions, duality, both shapes of the problem, and an independent solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from whichtoken.theory.sparse_tokens import convex_head
from whichtoken.theory.sparse_tokens.convex_head import fit_head, logistic_heads


def problem(samples, width, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(samples) < 0.4, 1.0, -1.0)
    labels[:2] = 1.0, -1.0
    return rng.standard_normal((samples, width)) + 0.8 * labels[:, None] * np.eye(1, width), labels


def objective(x, features, labels, ridge, loss):
    score = features @ x[:-1] + x[-1]
    values = {
        "logistic": np.logaddexp(0, -labels * score),
        "square": (score - labels) ** 2 / 2,
        "hinge": np.maximum(1 - labels * score, 0),
    }
    return values[loss].mean() + ridge / 2 * x[:-1] @ x[:-1]


@settings(max_examples=30)
@given(
    st.sampled_from(["logistic", "square", "hinge"]),
    st.integers(10, 60),
    st.integers(1, 80),
    st.floats(1e-5, 10.0),
    st.integers(0, 100),
)
def test_no_direction_improves_the_objective(loss, samples, width, ridge, seed):
    features, labels = problem(samples, width, seed)
    head = fit_head(features, labels, ridge, loss)
    assert head.optimality <= 1e-7
    x = np.append(head.readout, head.bias)
    assert head.objective == pytest.approx(objective(x, features, labels, ridge, loss), rel=1e-9)
    for direction in np.random.default_rng(seed).standard_normal((20, width + 1)):
        moved = x + 1e-3 * direction / np.linalg.norm(direction)
        assert objective(moved, features, labels, ridge, loss) >= head.objective - 1e-6 * (1 + head.objective)


@pytest.mark.parametrize("loss", ["logistic", "square"])
@pytest.mark.parametrize(("samples", "width"), [(60, 20), (20, 60)])
def test_matches_a_general_purpose_minimizer(loss, samples, width):
    features, labels = problem(samples, width)
    head = fit_head(features, labels, 0.05, loss)
    found = minimize(
        objective, np.zeros(width + 1), (features, labels, 0.05, loss), method="BFGS", options={"gtol": 1e-7}
    )
    np.testing.assert_allclose(np.append(head.readout, head.bias), found.x, atol=2e-5)
    assert head.objective <= found.fun + 1e-12


@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_smooth_heads_reach_machine_precision(loss):
    for samples, width, ridge in ((200, 100, 1e-5), (100, 200, 1e-2), (300, 20, 0.0)):
        assert fit_head(*problem(samples, width), ridge, loss).optimality < 1e-12


@pytest.mark.parametrize(("samples", "width"), [(60, 20), (20, 60)])
def test_a_path_of_ridges_ends_where_single_ridges_end(samples, width):
    features, labels = problem(samples, width)
    ridges = (1e-1, 1e-2, 1e-3)
    for ridge, head in zip(ridges, logistic_heads(features, labels, ridges), strict=True):
        alone = fit_head(features, labels, ridge)
        assert head.optimality < 1e-12
        np.testing.assert_allclose(head.readout, alone.readout, atol=1e-9)
        assert head.bias == pytest.approx(alone.bias, abs=1e-9)


@pytest.mark.parametrize(("samples", "width"), [(60, 20), (20, 60)])
def test_a_weight_repeats_its_sample(samples, width):
    features, labels = problem(samples, width)
    repeats = np.random.default_rng(1).integers(0, 4, samples)
    repeats[:2] = 1
    (weighted,) = logistic_heads(features, labels, (0.01,), repeats)
    repeated = fit_head(np.repeat(features, repeats, axis=0), np.repeat(labels, repeats), 0.01)
    np.testing.assert_allclose(weighted.readout, repeated.readout, atol=1e-9)
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-12)


def test_rough_heads_take_the_steps_of_exact_ones(monkeypatch):
    """Newton's method does not depend on coordinates, so those from products of the samples change nothing but rounding."""
    features, labels = problem(20, 60)
    features[5:9] = features[:4]  # products of equal samples have no Cholesky factor but for what is added
    ridges, tolerance = (1e-2, 1e-3, 1e-4), 1e-2
    rough = list(logistic_heads(features, labels, ridges, tolerance=tolerance))
    uneven = features * np.r_[1e9, np.ones(59)]  # products would lose the ridge
    exactly = next(logistic_heads(uneven, labels, ridges, tolerance=tolerance)).readout
    monkeypatch.setattr(convex_head, "ROUGH", 1.0)
    for ours, exact in zip(rough, logistic_heads(features, labels, ridges, tolerance=tolerance), strict=True):
        assert ours.iterations == exact.iterations
        np.testing.assert_allclose(ours.readout, exact.readout, rtol=0, atol=1e-7 * np.abs(exact.readout).max())
    np.testing.assert_array_equal(exactly, next(logistic_heads(uneven, labels, ridges, tolerance=tolerance)).readout)


@pytest.mark.parametrize(("samples", "width"), [(60, 20), (20, 60)])
def test_a_path_of_ridges_takes_fewer_steps_than_each_from_the_one_before(samples, width):
    features, labels = problem(samples, width)
    ridges, start, alone = np.logspace(0, -4, 9), None, 0
    for ridge in ridges:
        (head,) = logistic_heads(features, labels, (ridge,), tolerance=1e-2, start=start)
        start, alone = (head.readout, head.bias), alone + head.iterations
    assert sum(head.iterations for head in logistic_heads(features, labels, ridges, tolerance=1e-2)) < alone


@pytest.mark.parametrize(("samples", "width"), [(60, 20), (20, 60)])
@pytest.mark.parametrize("tolerance", [1e-10, 1e-3])
def test_a_head_that_starts_at_its_end_takes_one_step(samples, width, tolerance):
    features, labels = problem(samples, width)
    end = fit_head(features, labels, 0.01)
    (again,) = logistic_heads(features, labels, (0.01,), tolerance=tolerance, start=(end.readout, end.bias))
    assert again.iterations == 1
    np.testing.assert_allclose(again.readout, end.readout, atol=1e-8)


def test_hinge_closes_the_duality_gap():
    for samples, width, ridge in ((150, 60, 1e-2), (60, 150, 1e-4)):
        head = fit_head(*problem(samples, width), ridge, "hinge")
        assert -1e-12 <= head.optimality <= 1e-8


def test_bias_is_not_penalized():
    """Shifting all features moves the bias and nothing else."""
    features, labels = problem(80, 10)
    shift = np.linspace(-3, 3, 10)
    for loss in ("logistic", "square", "hinge"):
        one, other = (fit_head(f, labels, 0.1, loss) for f in (features, features + shift))
        np.testing.assert_allclose(other.readout, one.readout, atol=1e-5)
        assert other.objective == pytest.approx(one.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": -1.0}, "ridge=-1.0 must lie in [0, inf)"),
        ({"ridge": 0.0, "loss": "hinge"}, "ridge=0.0 must lie in (0, inf)"),
        ({"ridge": 0.0}, "ridge=0 needs more samples than parameters; got n=10 for p=20"),
        ({"labels": np.ones(10)}, "labels must contain -1 and +1 and nothing else"),
        ({"features": np.full((10, 20), math.nan)}, "must be finite"),
        ({"loss": "huber"}, "loss='huber' must be one of"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    features, labels = problem(10, 20)
    with pytest.raises(ValueError) as caught:
        fit_head(**{"features": features, "labels": labels, "ridge": 0.1, **change})
    assert message in str(caught.value)


def test_equal_features_without_ridge_are_refused():
    features, labels = problem(30, 2)
    with pytest.raises(ValueError, match=r"ridge=0\.0 leaves the minimizer undetermined"):
        fit_head(np.zeros_like(features), labels, 0.0)


def test_separable_samples_without_ridge_are_refused():
    features, labels = problem(30, 2)
    features[:, 0] = labels
    with pytest.raises(ValueError, match="ridge=0 with separable samples has no minimizer"):
        fit_head(features, labels, 0.0)
