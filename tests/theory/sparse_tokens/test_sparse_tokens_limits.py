"""Oracles and the Bayes floor: reference values, order, and direct simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens.limits import log_symmetric

ONE = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
THREE = {"length": 8, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}


def test_matches_reference_values():
    assert sparse_tokens.linear_oracle(**ONE) == pytest.approx(0.2146, abs=5e-5)
    assert sparse_tokens.bayes_floor(**ONE) == pytest.approx(0.0177, abs=1.5e-4)


@pytest.mark.parametrize(("length", "strength", "error"), [(10, math.log(10), 0.252), (100, math.log(100), 0.070)])
def test_logarithmic_strength_suffices_for_attention(length, strength, error):
    task = {"length": length, "signal_tokens": 1, "strength": strength, "prevalence": 0.5}
    oracle = sparse_tokens.attention_oracle(**task, points=1 << 13)
    counted = math.sqrt(error * (1 - error) / 20_000)  # the reference values are shares of that many sequences
    assert oracle.error == pytest.approx(error, abs=3 * math.hypot(oracle.standard_error, counted))
    assert sparse_tokens.bayes_floor(**task) <= oracle.error + 3 * oracle.standard_error
    assert oracle.error < sparse_tokens.linear_oracle(**task) / 1.3


def test_linear_oracle_needs_strength_of_order_root_length():
    for length in (10, 1000, 10**6):
        task = {"length": length, "signal_tokens": 1, "strength": math.sqrt(length), "prevalence": 0.5}
        assert sparse_tokens.linear_oracle(**task) == pytest.approx(0.3085, abs=5e-5)


def test_without_signal_nothing_beats_the_constant_answer():
    task = {**THREE, "strength": 0.0}
    assert sparse_tokens.linear_oracle(**task) == 0.2
    assert sparse_tokens.bayes_floor(**task) == pytest.approx(0.2, abs=1e-12)
    blind = sparse_tokens.attention_oracle(**task, points=1 << 13)
    assert blind.error == pytest.approx(0.2, abs=3 * blind.standard_error)


def test_likelihood_ratio_sums_over_all_placements():
    logs = np.random.default_rng(0).normal(size=(4, 7)) * 3
    direct = [logsumexp([sum(row[list(c)]) for c in itertools.combinations(range(7), 3)]) for row in logs]
    np.testing.assert_allclose(log_symmetric(logs, np.ones((1, 7)), 3)[:, 1], direct, rtol=1e-12)


@pytest.mark.parametrize(("length", "order", "scale"), [(300, 100, 1.0), (300, 299, 60.0), (2000, 5, 4.0)])
def test_likelihood_ratio_of_many_tokens_is_that_of_the_recursion_in_logarithms(length, order, scale):
    row = scale * np.random.default_rng(1).normal(size=length)
    level = np.full(order + 1, -np.inf)
    level[0] = 0.0
    for value in row:
        level[1:] = np.logaddexp(level[1:], level[:-1] + value)
    found = log_symmetric(row[None], np.ones((1, length)), order)[0]
    assert found == pytest.approx(level[order - 1 :], rel=1e-12)


def test_bayes_floor_matches_counted_mistakes_of_the_likelihood_ratio():
    rng = np.random.default_rng(1)
    count = 60_000
    positive = rng.random(count) < THREE["prevalence"]
    tokens = rng.standard_normal((count, 8))
    tokens[:, :3] += THREE["strength"] * positive[:, None]
    ratio = (
        log_symmetric(THREE["strength"] * tokens, np.ones((1, 8)), 3)[:, 1]
        - math.log(math.comb(8, 3))
        - 3 * THREE["strength"] ** 2 / 2
    )
    mistakes = (ratio + math.log(0.2 / 0.8) > 0) != positive
    floor = sparse_tokens.bayes_floor(**THREE)
    assert mistakes.mean() == pytest.approx(floor, abs=4 * math.sqrt(floor / count))


def test_attention_oracle_matches_counted_mistakes():
    rng = np.random.default_rng(2)
    oracle = sparse_tokens.attention_oracle(**ONE, inverse_temperature=2.0)
    count = 60_000
    positive = rng.random(count) < 0.5
    tokens = rng.standard_normal((count, 10))
    tokens[:, 0] += 5.0 * positive
    weight = np.exp(2 * (tokens - tokens.max(axis=1, keepdims=True)))
    score = (weight * tokens).sum(axis=1) / weight.sum(axis=1)
    mistakes = ((score > oracle.threshold) != positive).mean()
    assert mistakes == pytest.approx(oracle.error, abs=4 * math.sqrt(oracle.error / count))
