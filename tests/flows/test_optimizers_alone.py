"""Optimizers where torch has nothing to say any more: beyond its resolution, on equal ground with each other, on bad input."""

import math
from dataclasses import replace

import numpy as np
import pytest

from whichtoken.datasets import AttentionProblem, AttentionTokens
from whichtoken.flows.descent import attention_descent, balanced_chain
from whichtoken.flows.steps import OPTIMIZERS


def problem_and_start(seed=1, std=0.3):
    rng = np.random.default_rng(seed)
    return AttentionTokens().sample(rng), std * rng.standard_normal((10, 10))


def weights_of(problem, start, name, options, steps=40):
    return attention_descent(problem, start, name, steps=steps, **options).final


SCALE_FREE = {
    "normalized-gd": {"lr": 0.1, "momentum": 0.9},
    "sign": {"lr": 0.01, "momentum": 0.9},
    "coordinate": {"lr": 0.1},
    "adam": {"lr": 0.02, "eps": 0.0, "betas": (0.9, 0.99)},
    "lion": {"lr": 0.01},
    "muon": {"lr": 0.1},
    "shampoo": {"lr": 0.1},
    "soap": {"lr": 0.02, "eps": 0.0},
}


COMPILE_LONG = {"muon", "shampoo", "soap"}  # factorizations of matrices inside of a kernel


def slow_if_compiled_long(name):
    return pytest.param(name, marks=pytest.mark.slow if name in COMPILE_LONG else ())


@pytest.mark.parametrize("name", [slow_if_compiled_long(name) for name in SCALE_FREE])
def test_gradients_below_every_float_lead_to_the_same_place(name):
    """A loss e^-1000 times another has gradients e^-1000 times as large, and second moments e^-2000 times."""
    problem, start = problem_and_start()
    one, other = (
        attention_descent(problem, start, name, steps=300, loss=loss, **SCALE_FREE[name]).final.weights
        for loss in (lambda m: -m, lambda m: -m - 1000.0)
    )
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [slow_if_compiled_long(name) for name in ("adam", "soap")])
def test_eps_stops_gradients_below_it(name):
    problem, start = problem_and_start()
    final = attention_descent(problem, start, name, steps=10, lr=0.1, eps=1e-8, loss=lambda m: -m - 1000.0).final
    np.testing.assert_allclose(final.weights, start, rtol=1e-14)


@pytest.mark.parametrize("name", [slow_if_compiled_long(name) for name in ("sign", "muon", "adam")])
def test_direction_keeps_improving_where_autograd_has_none_left(name):
    problem, start = problem_and_start(std=1e-3)
    options = {"adam": {"eps": 0.0, "betas": (0.9, 0.9), "lr": 0.02}, "sign": {"lr": 0.02}, "muon": {"lr": 0.1}}[name]
    result = attention_descent(problem, start, name, steps=20_000, record=[2_000], **options)
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, result.final.weights, problem.queries)
    gaps = np.sort(scores, axis=1)[:, -1] - np.sort(scores, axis=1)[:, -2]
    assert gaps.min() > 40.0  # from 36 on, 1 + exp(-gap) is 1
    norm = {
        "sign": lambda w: np.abs(w).max(),
        "adam": lambda w: np.abs(w).max(),
        "muon": lambda w: np.linalg.norm(w, 2),
    }
    early, late = (
        margin(problem, state.direction, result.selected) / norm[name](state.direction)
        for state in (*result.snapshots, result.final)
    )
    assert late > early


def margin(problem, weights, selected):
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
    chosen = np.take_along_axis(scores, selected[:, None], axis=1)
    return np.where(np.arange(8) == selected[:, None], math.inf, chosen - scores).min()


@pytest.mark.slow
def test_shampoo_without_memory_is_muon():
    problem, start = problem_and_start()
    shampoo = weights_of(problem, start, "shampoo", {"lr": 0.1, "beta": 0.0}).weights
    muon = weights_of(problem, start, "muon", {"lr": 0.1, "momentum": 0.0}).weights
    np.testing.assert_allclose(shampoo, muon, rtol=0, atol=1e-6)


def test_schatten_mirror_with_p_2_is_normalized_descent():
    problem, start = problem_and_start()
    mirror = weights_of(problem, start, "mirror", {"lr": 0.1, "norm": "schatten", "p": 2.0}, steps=500)
    plain = weights_of(problem, start, "normalized-gd", {"lr": 0.1}, steps=500)
    entries = weights_of(problem, start, "mirror", {"lr": 0.1}, steps=500)
    np.testing.assert_allclose(mirror.direction, plain.direction, rtol=0, atol=1e-10)
    np.testing.assert_allclose(entries.direction, plain.direction, rtol=0, atol=1e-10)


def test_schatten_mirror_survives_norms_beyond_every_float():
    problem, start = problem_and_start()
    options = {"norm": "schatten", "p": 1.1, "rule": "geometric", "lr": 0.5}
    final = attention_descent(problem, start, "mirror", steps=2_000, **options).final
    assert final.log_norm > 750.0
    assert np.linalg.norm(final.direction) == pytest.approx(1.0, rel=1e-12)


def test_snapshots_are_where_shorter_runs_end():
    problem, start = problem_and_start()
    result = attention_descent(problem, start, "adam", lr=0.02, steps=30, record=[0, 10, 30])
    assert [state.step for state in result.snapshots] == [0, 10, 30]
    for state in result.snapshots:
        shorter = attention_descent(problem, start, "adam", lr=0.02, steps=state.step).final
        np.testing.assert_array_equal(state.direction, shorter.direction)
        assert state.log_norm == shorter.log_norm
    assert 4 * result.last_change > 90 or result.settled


BAD = {
    "optimizer='adm' must be one of mirror, gd": {"optimizer": "adm"},
    "adam has no option 'beta2'; it has betas": {"optimizer": "adam", "beta2": 0.9},
    "betas[1]=1.0 must lie in [0, 1)": {"optimizer": "adam", "betas": (0.9, 1.0)},
    "betas=0.9 must be two numbers": {"optimizer": "lion", "betas": 0.9},
    "eps=-1 must lie in [0, inf)": {"optimizer": "adam", "eps": -1},
    "momentum=1 must lie in [0, 1)": {"optimizer": "muon", "momentum": 1},
    "method='qr' must be one of polar, newton-schulz": {"optimizer": "muon", "method": "qr"},
    "p=3.0 is the geometry of optimizer='mirror', sign has its own": {"optimizer": "sign", "p": 3.0},
    "p=0.5 must be a finite number above 1": {"p": 0.5},
    "p=0.5 must lie in (1, inf)": {"p": 0.5, "norm": "schatten"},
    "norm='ky-fan' must be one of entrywise, schatten": {"norm": "ky-fan"},
    "mirror has no option 'momentum' in this norm": {"momentum": 0.9},
    "lr_power=-1 must lie in [0, inf)": {"optimizer": "sign", "lr_power": -1},
    "start must hold finite numbers": {"optimizer": "sign", "start": np.full((10, 10), np.nan)},
    "start of shape (3, 3) must be a matrix of shape (10, 10)": {"optimizer": "sign", "start": np.zeros((3, 3))},
    "factors of shapes [(10, 4), (3, 10)] must multiply": {
        "optimizer": "sign",
        "start": [np.zeros((10, 4)), np.zeros((3, 10))],
    },
}


@pytest.mark.parametrize("sentence", BAD)
def test_refuses_in_one_sentence(sentence):
    problem, start = problem_and_start()
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        attention_descent(problem, **{"start": start, "lr": 0.1, "steps": 3, **BAD[sentence]})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_token_or_equal_tokens_leave_the_start_alone():
    problem, start = problem_and_start()
    alone = replace(problem, tokens=problem.tokens[:, :1])
    equal = replace(problem, tokens=np.repeat(problem.tokens[:, :1], 4, axis=1))
    for case in (alone, equal):
        for name in OPTIMIZERS:
            final = attention_descent(case, start, name, lr=0.1, steps=5).final
            np.testing.assert_allclose(final.weights, start, rtol=1e-14)


def test_one_dimension_is_enough():
    problem = AttentionTokens(dim=1).sample(np.random.default_rng(0))
    for name in OPTIMIZERS:
        assert np.isfinite(attention_descent(problem, [[0.1]], name, lr=0.1, steps=20).final.direction).all()


def test_says_that_an_optimizer_diverges():
    """With beta_1^2 > beta_2, steps of Adam without eps grow as gradients fall."""
    tokens = np.array([[[1.0, 1.0], [-1.0, 2.0], [2.0, -1.0]]])
    problem = AttentionProblem(tokens, np.array([[1.0, 0.0]]), np.array([1]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match=r"diverges with lr=0\.05"):
        attention_descent(problem, np.zeros((2, 2)), "adam", lr=0.05, steps=20_000, betas=(0.99, 0.9), eps=0.0)


def test_a_chain_has_two_factors_or_more():
    with pytest.raises(ValueError, match="depth=1 must be a whole number of at least 2"):
        balanced_chain(np.eye(3), 1)
