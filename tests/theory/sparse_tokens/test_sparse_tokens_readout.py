"""The fixed point for the readout: reference values, identities, derivatives of the potential, simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.claims.sparse_tokens._tasks import attended_features
from whichtoken.datasets.sparse_tokens import SparseTokens, Task
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens.convex_head import fit_head
from whichtoken.theory.sparse_tokens.feature_law import _softmax_sums, attention_law, two_point_law
from whichtoken.theory.sparse_tokens.saddle import _Equations, saddle_point, square_saddle_point
from whichtoken.theory.sparse_tokens.token_noise import exponentials

ONE = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
THREE = {"length": 10, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}
SHORT = {"length": 5, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.3}

# task, alignment, temperature, loss, ridge, samples per dimension, train loss, test error and their last digits
ATTENTION = [
    (ONE, 0.9, 1.0, "logistic", 1e-2, 1, 0.02504, 0.04387),
    (ONE, 0.9, 1.0, "logistic", 1e-2, 3, 0.04059, 0.03190),
    (ONE, 0.6, 2.0, "logistic", 1e-3, 2, 0.01030, 0.09269),
    (SHORT, 0.7, 1.5, "logistic", 1e-1, 2, 0.18464, 0.09238),
    (THREE, 0.8, 1.0, "logistic", 1e-3, 6, 0.1427, 0.1353),
    (ONE, 0.9, 1.0, "square", 1e-2, 2, 0.04813, 0.09442),
    (SHORT, 0.7, 1.5, "square", 1e-3, 4, 0.09678, 0.09128),
    (THREE, -0.5, 1.0, "square", 1e-2, 3, 0.19702, 0.25356),
    (SHORT, 0.7, 1.5, "hinge", 1e-1, 3, 0.0821, 0.0883),
]
BASELINES = [
    ("pooled", ONE, "logistic", 1e-3, 3, 0.25361, 0.29607),
    ("pooled", SHORT, "square", 1e-2, 2, 0.08479, 0.16791),
    ("vectorized", SHORT, "logistic", 1e-1, 4, 0.11014, 0.16055),
    ("vectorized", ONE, "square", 1e-1, 20, 0.16009, 0.31903),
]


def attention(task, alignment, tau, **options):
    return sparse_tokens.erm(**task, alignment=alignment, inverse_temperature=tau, **options)


@pytest.mark.parametrize(("task", "alignment", "tau", "loss", "ridge", "alpha", "train", "test"), ATTENTION)
def test_attention_matches_reference_table(task, alignment, tau, loss, ridge, alpha, train, test):
    """The reference values carry an error of their own of about 1e-3."""
    result = attention(task, alignment, tau, loss=loss, ridge=ridge, samples_per_dim=alpha)
    assert result.converged
    assert result.error_estimate <= 1e-3 * result.test_error
    assert (result.train_loss, result.test_error) == pytest.approx((train, test), rel=1.5e-3)


def test_attention_interpolates_with_tiny_ridge_or_hinge():
    tiny = attention(ONE, 0.9, 1.0, ridge=1e-5, samples_per_dim=2)
    assert (tiny.train_loss, tiny.test_error) == pytest.approx((0.000134, 0.0422), rel=5e-3)
    hinge = attention(ONE, 0.9, 1.0, ridge=1e-2, samples_per_dim=2, loss="hinge")
    assert hinge.train_loss < 1e-5
    assert hinge.test_error == pytest.approx(0.0480, rel=1.5e-3)


@pytest.mark.parametrize(
    ("row", "overlaps"),
    [
        (0, (1.8350, 1.2051, -5.1465, 1.6003, 72.5)),
        (3, (0.7587, 0.9244, -2.7583, 0.6887, 3.461)),
        (5, (0.3540, 0.2904, -1.1197, 0.7142, 2.513)),
    ],
)
def test_attention_matches_reference_overlaps(row, overlaps):
    task, alignment, tau, loss, ridge, alpha, *_ = ATTENTION[row]
    result = attention(task, alignment, tau, loss=loss, ridge=ridge, samples_per_dim=alpha)
    found = (result.query_overlap, result.signal_overlap, result.bias, result.rest_norm, result.response)
    assert found == pytest.approx(overlaps, rel=1.5e-3)


@pytest.mark.parametrize(("model", "task", "loss", "ridge", "alpha", "train", "test"), BASELINES)
def test_baselines_match_reference_table(model, task, loss, ridge, alpha, train, test):
    result = sparse_tokens.erm(model=model, **task, loss=loss, ridge=ridge, samples_per_dim=alpha)
    assert result.converged
    assert (result.train_loss, result.test_error) == pytest.approx((train, test), abs=6e-6)


def test_vectorized_matches_six_digit_values():
    result = sparse_tokens.erm(model="vectorized", **ONE, samples_per_dim=20, ridge=0.1)
    found = (
        result.train_loss,
        result.test_error,
        result.signal_overlap,
        result.bias,
        result.rest_norm,
        result.response,
    )
    assert found == pytest.approx((0.314390, 0.293358, 0.924466, -0.730854, 0.976195, 2.340523), abs=6e-7)


@pytest.mark.parametrize("loss", ["logistic", "square", "hinge"])
@pytest.mark.parametrize("alignment", [-0.4, 0.9])
def test_query_zero_is_pooling(loss, alignment):
    """At temperature 0 the query picks a coordinate system and nothing else."""
    problem = {**ONE, "loss": loss, "ridge": 1e-2, "samples_per_dim": 2.0}
    pooled = sparse_tokens.erm(model="pooled", **problem)
    still = sparse_tokens.erm(**problem, alignment=alignment, inverse_temperature=0.0)
    # the kinks of the hinge cost the trapezoidal rule its geometric convergence
    tolerance = 1e-5 if loss == "hinge" else 1e-8
    assert (still.train_loss, still.test_error, still.readout_norm) == pytest.approx(
        (pooled.train_loss, pooled.test_error, pooled.readout_norm), rel=tolerance
    )
    barely = sparse_tokens.erm(**problem, alignment=alignment, inverse_temperature=1e-4)
    assert barely.test_error == pytest.approx(pooled.test_error, rel=1e-3)


@pytest.mark.parametrize("loss", ["logistic", "square", "hinge"])
def test_pooled_and_vectorized_are_one_mixture_problem(loss):
    """pooled(alpha, ridge) = vectorized(L alpha, L ridge): both classify two Gaussians of the same separation."""
    pooled = sparse_tokens.erm(model="pooled", **SHORT, loss=loss, samples_per_dim=1.3, ridge=0.02)
    flat = sparse_tokens.erm(model="vectorized", **SHORT, loss=loss, samples_per_dim=5 * 1.3, ridge=5 * 0.02)
    assert (pooled.train_loss, pooled.test_error, pooled.objective) == pytest.approx(
        (flat.train_loss, flat.test_error, flat.objective), rel=1e-8
    )


@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_ridge_derivative_of_the_objective_is_half_the_squared_norm(loss):
    def solve(ridge):
        return sparse_tokens.erm(model="pooled", **SHORT, loss=loss, samples_per_dim=2.0, ridge=ridge)

    step = 1e-5
    slope = (solve(0.1 + step).objective - solve(0.1 - step).objective) / (2 * step)
    assert slope == pytest.approx(solve(0.1).readout_norm ** 2 / 2, rel=1e-8)


def test_closed_form_of_the_square_loss_satisfies_the_general_equations():
    """The five equations, written out with the prox of the square loss on the nodes of the law."""
    law = attention_law(Task(**SHORT), 0.7, 1.5, points=1 << 15)
    alpha, ridge = 2.0, 0.05
    p = square_saddle_point(law, alpha, ridge)
    mean, noise = law.score(p.query_overlap, p.signal_overlap, p.bias, p.signal_overlap**2 + p.rest_norm**2)
    width = law.spread * p.response
    slope = (mean + noise * law.gauss - law.label) / (1 + width)
    chi = law.weight @ (law.spread / (1 + width))
    assert law.weight @ slope == pytest.approx(0.0, abs=1e-4)
    assert (ridge + chi) * p.signal_overlap == pytest.approx(-law.weight @ (slope * law.signal_mean), rel=2e-3)
    assert p.response == pytest.approx(1 / (alpha * (ridge + chi)), rel=1e-9)
    assert p.rest_norm**2 == pytest.approx(alpha * p.response**2 * (law.weight @ (law.spread * slope**2)), rel=2e-3)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_newton_uses_the_true_derivatives_of_the_potential(loss):
    law = attention_law(Task(**SHORT), 0.7, 1.5, points=64)
    equations = _Equations(law, loss, 2.0, 0.05)
    state = np.array([0.4, 0.3, -0.5, -0.2, 0.9])
    here, step = equations(state), 1e-6
    for k in range(5):
        shift = step * np.eye(5)[k]
        numeric = (equations(state + shift).gradient - equations(state - shift).gradient) / (2 * step)
        np.testing.assert_allclose(here.hessian[k], numeric, rtol=2e-5, atol=2e-7)


@settings(max_examples=25)
@given(
    st.sampled_from(["logistic", "hinge"]),
    st.floats(0.0, 4.0),
    st.floats(0.1, 0.9),
    st.floats(0.1, 30.0),
    st.floats(1e-4, 1.0),
)
def test_saddle_point_is_found_from_zero_and_from_a_neighbor(loss, separation, prevalence, alpha, ridge):
    law = two_point_law(prevalence, 0.0, separation, 1.0, 0.0, 385)
    cold = saddle_point(law, loss, alpha, ridge)
    assert cold.residual <= 1e-9
    warm = saddle_point(law, loss, alpha, ridge, saddle_point(law, loss, 1.2 * alpha, 1.2 * ridge))
    assert warm.residual <= 1e-9
    found = [
        (p.bias, law.error(0.0, p.signal_overlap, p.bias, p.signal_overlap**2 + p.rest_norm**2)) for p in (cold, warm)
    ]
    vanishing = loss == "hinge" and cold.rest_norm < 1e-2  # stopped on its way to a constant answer
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=2e-2 if vanishing else 1e-5)


def test_training_loss_vanishes_with_the_ridge_only_below_capacity():
    limit = sparse_tokens.capacity(model="pooled", **ONE)
    below, above = (
        [sparse_tokens.erm(model="pooled", **ONE, samples_per_dim=f * limit, ridge=r).train_loss for r in (1e-4, 1e-6)]
        for f in (0.8, 1.2)
    )
    assert below[1] < 0.05 * below[0]
    assert above[1] > 0.5 * above[0]


def test_errors_of_a_strong_signal_underflow_to_zero():
    task = {"length": 10, "signal_tokens": 1, "strength": 60.0, "prevalence": 0.5}
    found = sparse_tokens.erm(**task, alignment=0.9, inverse_temperature=1.0, samples_per_dim=2.0, ridge=1e-2)
    assert found.test_error == 0.0
    assert found.converged


def test_temperature_and_alignment_decide_who_wins():
    """Unlimited data, square loss: values of the limit, attention worse than linear only for a lost query."""
    values = {(0.5, 0.2): 0.1798, (1.0, 0.0): 0.3235, (1.0, 0.9): 0.0403, (2.0, 0.6): 0.0685, (2.0, 1.0): 0.0219}
    for (tau, alignment), error in values.items():
        result = attention(ONE, alignment, tau, loss="square", ridge=0.0, samples_per_dim=1e7)
        assert result.test_error == pytest.approx(error, rel=3e-3)


def test_hinge_prefers_a_constant_answer_to_a_weak_rare_signal():
    """The readout vanishes, in theory and in a support vector machine alike; a logistic readout does not."""
    task = {"length": 10, "signal_tokens": 1, "strength": 0.3, "prevalence": 0.1}
    theory = sparse_tokens.erm(model="pooled", **task, samples_per_dim=20, ridge=1e-3, loss="hinge")
    assert theory.converged
    assert (theory.train_loss, theory.test_error, theory.bias) == pytest.approx((0.2, 0.1, -1.0), abs=1e-3)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(800) < 0.1, 1.0, -1.0)
    features = (rng.standard_normal((800, 40)) + 0.095 * (labels[:, None] > 0) * np.eye(1, 40)) / math.sqrt(10)
    machine = fit_head(features, labels, 1e-3, "hinge")
    assert np.linalg.norm(machine.readout) < 0.05
    assert sparse_tokens.erm(model="pooled", **task, samples_per_dim=20, ridge=1e-3).readout_norm > 1


def test_warm_start_reaches_the_same_point_in_fewer_iterations():
    problem = {"ridge": 1e-2, "samples_per_dim": 2.0}
    cold = attention(ONE, 0.9, 1.0, **problem)
    warm = attention(ONE, 0.9, 1.0, **problem, start=attention(ONE, 0.9, 1.0, ridge=1e-2, samples_per_dim=2.2))
    assert warm.test_error == pytest.approx(cold.test_error, rel=1e-8)
    assert warm.iterations < cold.iterations


@pytest.mark.parametrize("loss", ["logistic", "square", "hinge"])
def test_theory_agrees_with_training_at_finite_dimension(loss):
    """Exact feature sampler, exact heads, exact test error: nothing but the dimension differs from the theory."""
    dim, trials, rng = 150, 12, np.random.default_rng(3)
    source = SparseTokens(**SHORT, dim=dim)
    signal, query = np.zeros(dim), np.zeros(dim)
    signal[:2], query[0] = (0.7, math.sqrt(1 - 0.49)), 1.0
    rows = []
    for _ in range(trials):
        head = fit_head(*attended_features(source, 2 * dim, 0.7, 1.5, rng), 0.1, loss)
        error = sparse_tokens.exact_error(
            head.readout, head.bias, signal, query=query, inverse_temperature=1.5, **SHORT, points=1 << 12
        )
        rows.append((head.train_loss, error))
    mean, sem = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / math.sqrt(trials)
    theory = attention(SHORT, 0.7, 1.5, ridge=0.1, samples_per_dim=2.0, loss=loss)
    assert np.all(np.abs(mean - [theory.train_loss, theory.test_error]) <= 0.03 * mean + 3 * sem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signal_tokens": 10}, "signal_tokens=10 must be smaller than length=10"),
        ({"prevalence": 0.0}, "prevalence=0.0 must lie in (0, 1)"),
        ({"prevalence": math.nan}, "prevalence=nan must lie in (0, 1)"),
        ({"strength": -0.1}, "strength=-0.1 must lie in [0, inf)"),
        ({"ridge": -1e-9}, "ridge=-1e-09 must lie in [0, inf)"),
        ({"samples_per_dim": 0}, "samples_per_dim=0 must lie in (0, inf)"),
        ({"alignment": 1.1}, "alignment=1.1 must lie in [-1, 1]"),
        ({"alignment": None}, "alignment and inverse_temperature are needed for model='attention'"),
        ({"inverse_temperature": -1.0}, "inverse_temperature=-1.0 must lie in [0, inf)"),
        ({"model": "linear"}, "model='linear' must be one of attention, pooled, vectorized"),
        ({"ridge": 0.0}, "ridge=0 needs samples_per_dim above 21."),
        ({"ridge": 0.0, "loss": "square", "samples_per_dim": 0.9}, "ridge=0 needs samples_per_dim above 1 "),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    problem = {**ONE, "alignment": 0.9, "inverse_temperature": 1.0, "samples_per_dim": 2.0, "ridge": 0.1}
    with pytest.raises(ValueError) as caught:
        sparse_tokens.erm(**{**problem, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exponentials_of_many_tokens_are_exact():
    """Also inside of loops whose sums may run in any order, and for tokens that do not count and lie above the peak."""
    x = np.concatenate([[0.0, -0.0, -5e-324, -1e-9, -700.0], -np.geomspace(1e-12, 700, 100_003)])
    found = np.empty_like(x)
    exponentials(x, np.empty_like(x), found)
    assert np.abs(found / np.exp(x) - 1).max() < 1e-15
    values, counts = np.array([1.0, -2.0, 0.5, -1e6, 900.0]), np.array([1.0, 2.0, 1.0, 3.0, 0.0])
    kept, work = slice(4), np.empty((3, 5))
    weights = np.exp(3.0 * (values[kept] - 1.0))
    expected = [weights, weights * (values[kept] - 0.1), weights**2]
    found = _softmax_sums(values, counts, 3.0, 1.0, 0.1, work)
    assert np.allclose(found, [counts[kept] @ terms for terms in expected], rtol=1e-14)
