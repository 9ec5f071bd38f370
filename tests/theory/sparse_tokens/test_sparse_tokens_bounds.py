"""What must be true of every value, whatever the task: constant answers, the Bayes floor, monotonicity, honesty."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import ndtr

from whichtoken.claims.sparse_tokens._tasks import attended_features
from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens import planner, saddle
from whichtoken.theory.sparse_tokens.convex_head import fit_head
from whichtoken.theory.sparse_tokens.design import Design, best_design, design_error
from whichtoken.theory.sparse_tokens.token_noise import token_chunks

RARE_HINGE = {"length": 10, "signal_tokens": 1, "strength": 3.0, "prevalence": 0.3}
FAR = {"length": 100_000, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}


def logarithmic(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def tasks(draw, longest=10**6):
    length = min(longest, max(2, round(draw(logarithmic(2, longest)))))
    signal_tokens = min(length - 1, max(1, round(draw(logarithmic(1, length)))))
    rarer = draw(logarithmic(1e-6, 0.5))
    prevalence = draw(st.sampled_from([rarer, 1 - rarer]))
    return {
        "length": length,
        "signal_tokens": signal_tokens,
        "strength": draw(logarithmic(1e-3, 100.0)),
        "prevalence": prevalence,
    }


def constant(loss, prevalence):
    """Least mean loss of a constant score, by a search that knows the losses alone."""
    losses = {"logistic": lambda u: np.logaddexp(0, -u), "hinge": lambda u: np.maximum(1 - u, 0)}
    one = losses.get(loss, lambda u: (1 - u) ** 2 / 2)
    scores = np.concatenate([np.linspace(-15, 15, 20_001), [-1.0, 1.0]])
    return float((prevalence * one(scores) + (1 - prevalence) * one(-scores)).min())


def check_readout(found, task, loss, floor, doubt=0.0):
    if not found.converged:
        return
    prevalence = task["prevalence"]
    assert found.objective <= constant(loss, prevalence) * (1 + 1e-4) + found.train_loss_error
    assert found.test_error >= floor * (1 - 1e-9) - doubt - 2 * found.error_estimate
    assert found.test_error <= 1


@settings(max_examples=60)
@given(
    tasks(),
    st.sampled_from(["pooled", "vectorized"]),
    st.sampled_from(["logistic", "square", "hinge"]),
    logarithmic(1e-3, 1e6),
    logarithmic(1e-6, 1e4),
)
@example(RARE_HINGE, "pooled", "hinge", 1e6, 1e-2)
@example(RARE_HINGE, "pooled", "hinge", 2.0, 100.0)
@example({**RARE_HINGE, "prevalence": 0.5}, "vectorized", "hinge", 1e-3, 1e4)
def test_linear_readouts_are_between_the_linear_oracle_and_a_constant_answer(task, model, loss, alpha, ridge):
    found = sparse_tokens.erm(model=model, **task, samples_per_dim=alpha, ridge=ridge, loss=loss)
    assert found.converged
    check_readout(found, task, loss, sparse_tokens.linear_oracle(**task))


@pytest.mark.slow
@settings(max_examples=6)
@given(
    tasks(),
    st.floats(-1, 1),
    logarithmic(1e-2, 10.0),
    st.sampled_from(["logistic", "square", "hinge"]),
    logarithmic(1e-3, 1e6),
    logarithmic(1e-6, 1e4),
)
def test_attention_is_between_the_bayes_floor_and_a_constant_answer(task, alignment, tau, loss, alpha, ridge):
    query = {"alignment": alignment, "inverse_temperature": tau}
    found = sparse_tokens.erm(**task, **query, samples_per_dim=alpha, ridge=ridge, loss=loss, accuracy=0.1)
    assert found.converged or math.isnan(found.test_error) or found.error_estimate > 0
    floor = sparse_tokens.bayes_oracle(**task, points=1 << 9)
    check_readout(found, task, loss, floor.error, 4 * floor.standard_error)


@pytest.mark.slow
@settings(max_examples=5)
@given(tasks(), st.integers(2, 30), st.floats(1.1, 5.0))
@example({**RARE_HINGE, "prevalence": 0.999999}, 2, 2.0)
@example({**RARE_HINGE, "strength": 10.0}, 2, 1.5)
@example({**FAR, "length": 10_000}, 10, 1.2)
def test_oracles_are_in_order_and_fall_with_shorter_sequences_and_stronger_signals(task, longer, stronger):
    limits = []
    for change in ({}, {"length": longer * task["length"]}, {"strength": stronger * task["strength"]}):
        harder = {**task, **change}
        floor = sparse_tokens.bayes_oracle(**harder, points=1 << 9)
        oracle = sparse_tokens.attention_oracle(**harder, points=1 << 9)
        linear = sparse_tokens.linear_oracle(**harder)
        assert oracle.error <= linear <= min(task["prevalence"], 1 - task["prevalence"])
        assert floor.error <= linear
        assert floor.error <= oracle.error + 4 * math.hypot(floor.standard_error, oracle.standard_error)
        limits.append((floor.error, oracle.error, linear, floor.standard_error, oracle.standard_error))
    here, long, strong = limits
    floor_doubt, oracle_doubt = (4 * math.hypot(here[k], long[k], strong[k]) for k in (3, 4))
    for k, doubt in ((0, floor_doubt), (1, oracle_doubt), (2, 1e-12)):
        assert strong[k] <= here[k] * (1 + 1e-9) + doubt
        # a grid of temperatures is a little off the best, and not equally so at all lengths
        assert here[k] <= long[k] * (1.03 if k == 1 else 1 + 1e-9) + doubt


def test_population_hinge_is_that_of_a_direct_minimization():
    """Samples without end: two Gaussians, two numbers to choose, the hinge integrated in closed form."""
    length, mean, noise, ridge = 10, 0.3, 1 / math.sqrt(10), 0.01

    def objective(x):
        gap = np.array([1 - mean * x[0] - x[1], 1 + x[1]])
        scale = abs(x[0]) * noise + 1e-12
        density = np.exp(-((gap / scale) ** 2) / 2) / math.sqrt(2 * math.pi)
        return np.array([0.3, 0.7]) @ (gap * ndtr(gap / scale) + scale * density) + ridge / 2 * x[0] ** 2

    best = minimize(
        objective, [0.5, -1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000}
    )
    found = sparse_tokens.erm(model="pooled", **RARE_HINGE, loss="hinge", samples_per_dim=1e6, ridge=ridge)
    assert length == RARE_HINGE["length"]
    assert found.converged
    assert found.objective == pytest.approx(best.fun, rel=1e-5)
    assert found.objective < 0.6
    assert found.test_error <= 0.3 + 1e-9


@pytest.mark.parametrize("ridge", [100.0, 1e4])
def test_hinge_with_a_large_ridge_is_the_constant_answer_of_a_support_vector_machine(ridge):
    found = sparse_tokens.erm(model="pooled", **RARE_HINGE, loss="hinge", samples_per_dim=2.0, ridge=ridge)
    assert found.converged
    assert found.test_error == pytest.approx(0.3, abs=1e-9)
    # the slope of the loss in the readout's norm is some number c at zero, so the gain is c^2 / (2 ridge)
    assert 0.6 - found.objective == pytest.approx(0.005606 / ridge, rel=1e-2)
    rng = np.random.default_rng(0)
    features, labels = attended_features(SparseTokens(**RARE_HINGE, dim=60), 120, 0.5, 1e-9, rng)
    machine = fit_head(features, labels, ridge, "hinge")
    assert machine.train_loss == pytest.approx(2 * np.mean(labels > 0), abs=2e-3)
    assert machine.bias == pytest.approx(-1.0, abs=2e-3)


def test_bayes_floor_of_a_long_sequence_is_that_of_brute_force():
    """Every token drawn, mistakes of the likelihood ratio counted."""
    task, draws, rng = {**FAR, "length": 10_000}, 1500, np.random.default_rng(5)
    wrong = np.zeros(2)
    for _ in range(draws):
        tokens = rng.standard_normal(task["length"])
        ratios = []
        for _label in range(2):
            ratios.append(np.exp(5 * tokens - 12.5).mean())
            tokens[0] += 5
        wrong += [ratios[0] > 1, ratios[1] <= 1]
    counted = wrong.mean() / draws
    floor = sparse_tokens.bayes_oracle(**task)
    assert floor.standard_error < 2e-3
    assert floor.error == pytest.approx(
        counted, abs=4 * math.hypot(math.sqrt(counted / (2 * draws)), floor.standard_error)
    )


@pytest.mark.slow
def test_plan_of_a_long_sequence_is_above_the_floor():
    far = sparse_tokens.bayes_oracle(**FAR)
    assert far.error == pytest.approx(0.239, abs=3 * 0.010)
    unlimited = best_design(sparse_tokens.Task(**FAR), 1e5)
    query = {"alignment": unlimited.alignment, "inverse_temperature": unlimited.inverse_temperature}
    found = sparse_tokens.erm(
        **FAR, **query, samples_per_dim=1e5 * (1 - unlimited.query_share), ridge=unlimited.ridge, accuracy=0.02
    )
    assert found.test_error >= far.error - 4 * far.standard_error - 2 * found.error_estimate
    assert found.test_error <= 1.1 * sparse_tokens.attention_oracle(**FAR).error


def test_short_form_of_long_noise_has_the_sums_of_the_full_one():
    """Bins and highest tokens against every token drawn: mean and deviation of softmax sums, and of the highest token."""
    length, points = 3000, 4096
    (short,) = [draws.rest for draws in token_chunks(2048, length, 1, seed=0)]
    full = np.random.default_rng(1).standard_normal((points, length - 1))
    assert np.all(short.counts.sum(axis=1) == length - 1)
    highest = np.where(short.counts > 0, short.values, -np.inf).max(axis=1)
    pairs = [(highest, full.max(axis=1))]
    for tau in (0.0, 0.5, 1.5, 3.0):
        weighted = short.counts * np.exp(tau * short.values) * (short.values if tau == 0 else 1.0)
        pairs.append((weighted.sum(axis=1), (np.exp(tau * full) * (full if tau == 0 else 1.0)).sum(axis=1)))
    for ours, theirs in pairs:
        ours, theirs = (np.arcsinh(values / np.median(np.abs(theirs))) for values in (ours, theirs))
        assert ours.mean() == pytest.approx(theirs.mean(), abs=4 * theirs.std() * math.sqrt(1 / 2048 + 1 / points))
        assert ours.std() == pytest.approx(theirs.std(), rel=0.08)


def test_a_strong_signal_does_not_throw_the_query_off():
    """With the usual first step it would turn away from the signal, at an error of one half."""
    task = sparse_tokens.Task(10, 1, 80.0, 0.5)
    design = best_design(task, 1000 / 300)
    assert design_error(task, 1000 / 300, 0.05, 8.0, False) > 0.4
    assert design.alignment > 0.99
    assert design.error(task, 1000 / 300) < 1e-20


@pytest.mark.parametrize(
    "task", [(10, 1, 3.0, 0.3), (4, 3, 1.0, 0.1), (2, 1, 100.0, 1e-3), (3000, 5, 4.0, 0.6)], ids=str
)
def test_designs_improve_with_samples_and_are_never_worse_than_a_constant_answer(task):
    task = sparse_tokens.Task(*task)
    errors = [best_design(task, alpha).error(task, alpha, 1 << 12) for alpha in (0.03, 1.0, 30.0)]
    trivial = min(task.prevalence, 1 - task.prevalence)
    assert errors[0] <= trivial * (1 + 1e-3)
    assert errors[2] <= 1.02 * errors[1] <= 1.02**2 * errors[0]


def test_designs_improve_with_strength_and_shorter_sequences():
    task = sparse_tokens.Task(20, 1, 4.0, 0.4)
    changes = [{"length": 200}, {}, {"strength": 5.0}, {"length": 10, "strength": 5.0}]
    errors = [best_design(harder, 3.0).error(harder, 3.0, 1 << 12) for harder in (replace(task, **c) for c in changes)]
    assert errors == sorted(errors, reverse=True)


def test_what_is_not_solved_is_not_a_number(monkeypatch):
    monkeypatch.setattr(saddle, "MAX_ITERATIONS", 1)
    monkeypatch.setattr(saddle, "SETTLING", 1)
    found = sparse_tokens.erm(model="pooled", **RARE_HINGE, loss="hinge", samples_per_dim=2.0, ridge=1e-3)
    assert not found.converged
    assert math.isnan(found.test_error)
    assert math.isnan(found.train_loss)
    assert math.isnan(design_error(sparse_tokens.Task(**RARE_HINGE), 2.0, 0.5, 1.0, False))


def forecasts(attention, pooled, vectorized):
    names = ("attention", "pooled", "vectorized")
    errors = (attention, pooled, vectorized)
    return {name: planner.Forecast(error, 0.1, None, 100.0) for name, error in zip(names, errors, strict=True)}


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ((0.1221, 0.1219, 0.3), "attention and a linear model are equally good here (error 0.122)"),
        ((0.15, 0.1219, 0.3), "attention loses to a linear model here (0.15 against 0.122)"),
        ((0.499, 0.498, 0.5), "no model does noticeably better than a constant answer, which has an error of 0.5"),
        ((math.nan, 0.2, 0.3), "the equations for attention could not be solved here, so its error is not known"),
    ],
)
def test_plans_say_in_words_how_the_models_compare(errors, sentence):
    task, design = sparse_tokens.Task(**{**RARE_HINGE, "prevalence": 0.5}), Design(0.5, 1.0, False, alignment=0.9)
    warnings = list(planner._warnings(task, 300, 3000, None, design, forecasts(*errors)))
    assert [warning for warning in warnings if sentence in warning]
    assert len(warnings) == 1
