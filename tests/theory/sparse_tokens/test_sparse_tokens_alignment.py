"""Two gradient steps: reference values, limits, and a direct computation of the same expectations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.theory import sparse_tokens

PAPER = {"length": 10, "signal_tokens": 3, "strength": 6.0, "prevalence": 0.2}
WEAK = {"length": 10, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}
ONE = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
SHORT = {"length": 5, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.3}


def steps(task, samples_per_dim, rate=0.5, **options):
    rates = {"lr_readout": rate, "lr_bias": rate, "lr_query": rate, **options}
    return sparse_tokens.two_steps(**task, samples_per_dim=samples_per_dim, **rates)


# task, samples per dimension, options, readout alignment, alignment, query norm
TABLE = [
    (PAPER, 0.5, {}, 0.6271, 0.7016, 0.0318),
    (PAPER, 1, {}, 0.7513, 0.8283, 0.0273),
    (PAPER, 2, {}, 0.8495, 0.9075, 0.0250),
    (PAPER, 4, {}, 0.9156, 0.9520, 0.0239),
    (ONE, 0.5, {}, 0.4880, 0.7462, 0.0225),
    (ONE, 1, {}, 0.6202, 0.8837, 0.0192),
    (ONE, 4, {}, 0.8452, 0.9768, 0.0175),
    (SHORT, 0.5, {"rate": 1.0}, 0.4947, 0.2888, 0.1069),
    (SHORT, 1, {"rate": 1.0}, 0.6271, 0.4433, 0.0730),
    (SHORT, 2, {"rate": 1.0, "lr_query": 0.5}, 0.7513, 0.6102, 0.0272),
    (SHORT, 4, {"rate": 1.0}, 0.8495, 0.7554, 0.0444),
    (WEAK, 4, {}, 0.6046, -0.4021, 0.0055),
    (WEAK, 4, {"bias_correction": True}, 0.6046, 0.7683, 0.0026),
    ({**ONE, "length": 5, "strength": 4.0}, 0.5, {"lr_readout": 10.0}, 0.5345, 0.1331, 0.2749),
    ({**ONE, "length": 5, "strength": 4.0}, 0.5, {"lr_readout": 10.0, "reuse": False}, 0.5345, 0.3579, 0.6239),
]


@pytest.mark.parametrize(("task", "samples_per_dim", "options", "readout", "alignment", "norm"), TABLE)
def test_matches_reference_table(task, samples_per_dim, options, readout, alignment, norm):
    result = steps(task, samples_per_dim, **options)
    found = (result.readout_alignment, result.alignment, result.query_norm)
    assert found == pytest.approx((readout, alignment, norm), abs=5.1e-5)


def test_matches_six_digit_values():
    result = steps(PAPER, 2)
    found = (result.readout_alignment, result.readout_norm, result.bias, result.query_overlap, result.query_norm)
    assert (*found, result.alignment) == pytest.approx(
        (0.849473, 0.105948, -0.15, 0.022717, 0.025033, 0.907492), abs=6e-7
    )
    logistic, square = steps(ONE, 2), steps(ONE, 2, loss="square")
    assert (logistic.alignment, logistic.query_norm) == pytest.approx((0.948756, 0.018007), abs=6e-7)
    assert (square.alignment, square.query_norm) == pytest.approx((0.944719, 0.066054), abs=6e-7)


@pytest.mark.parametrize(("task", "constant"), [(ONE, 0.08164), (PAPER, 0.19966)])
def test_alignment_approaches_one_with_the_stated_constant(task, constant):
    result = steps(task, 1e5)
    assert result.approach_constant == pytest.approx(constant, abs=6e-6)
    assert (1 - result.alignment) * 1e5 == pytest.approx(constant, rel=2e-4)
    assert steps(task, math.inf).alignment == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "square", "hinge"])
def test_moments_match_a_monte_carlo_of_the_score(loss):
    """An independent route: draw the score after step one and average its slopes."""
    rng = np.random.default_rng(0)
    alpha, rate, (length, signal, strength, prevalence) = 2.0, 1.0, ONE.values()
    slope = {
        "logistic": lambda u, y: -y / (1 + np.exp(y * u)),
        "square": lambda u, y: u - y,
        "hinge": lambda u, y: -y * (y * u < 1),
    }[loss]
    y = np.where(rng.random(400_000) < prevalence, 1.0, -1.0)
    a = slope(np.zeros_like(y), y)
    share = strength * signal / length
    m = -rate * (a * (y > 0)).mean() * share
    nu = math.sqrt(m**2 + rate**2 * (a**2).mean() / (alpha * length))
    u = -rate * a.mean() + share * m * (y > 0) - rate * a / (alpha * length)
    h = slope(u + nu / math.sqrt(length) * rng.standard_normal(y.size), y)
    pull = strength**2 * signal * (1 - signal / length) * (h * (y > 0)).mean()
    overlap = -rate / length * m * (pull + (length - 1) * h.mean())
    assert steps(ONE, alpha, rate, loss=loss).query_overlap == pytest.approx(overlap, rel=5e-3)


@settings(max_examples=40)
@given(
    st.integers(2, 40).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length - 1))),
    st.floats(0.0, 8.0),
    st.floats(0.05, 0.95),
    st.floats(0.05, 50.0),
    st.sampled_from(["logistic", "square", "hinge"]),
)
def test_alignment_is_a_cosine_and_free_of_query_step_and_temperature(size, strength, prevalence, alpha, loss):
    task = {"length": size[0], "signal_tokens": size[1], "strength": strength, "prevalence": prevalence}
    one = steps(task, alpha, loss=loss)
    other = steps(task, alpha, loss=loss, lr_query=2.0, inverse_temperature=3.0)
    assert -1 <= one.alignment <= 1
    assert other.alignment == pytest.approx(one.alignment, abs=1e-12)
    assert other.query_norm == pytest.approx(12 * one.query_norm, rel=1e-12)


def test_population_without_signal_moves_nothing():
    task = {"length": 10, "signal_tokens": 1, "strength": 0.0, "prevalence": 0.5}
    steps = sparse_tokens.two_steps(**task, samples_per_dim=math.inf, lr_readout=0.5, lr_bias=0.5, lr_query=0.5)
    assert (steps.readout_norm, steps.readout_alignment, steps.query_norm, steps.alignment) == (0, 0, 0, 0)


def test_sign_follows_the_small_step_condition():
    """Aligned iff strength^2 R (1 - R/L) > (L - 1)(1 - 2 pi) / pi, for small steps."""
    boundary = math.sqrt(9 * 0.6 / 0.2 / (3 * 0.7))
    for factor, sign in ((0.97, -1), (1.03, 1)):
        assert np.sign(steps({**PAPER, "strength": factor * boundary}, 2, 1e-3).alignment) == sign


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signal_tokens": 10}, "signal_tokens=10 must be smaller than length=10"),
        ({"signal_tokens": 0}, "signal_tokens=0 must be a whole number of at least 1"),
        ({"prevalence": 1.0}, "prevalence=1.0 must lie in (0, 1)"),
        ({"strength": -1.0}, "strength=-1.0 must lie in [0, inf)"),
        ({"samples_per_dim": 0.0}, "samples_per_dim=0.0 must lie in (0, inf]"),
        ({"lr_query": 0.0}, "lr_query=0.0 must lie in (0, inf)"),
        ({"loss": "huber"}, "loss='huber' must be one of logistic, square, hinge"),
        ({"loss": "hinge", "bias_correction": True}, "bias_correction is defined for loss='logistic' and 'square'"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    arguments = {**ONE, "samples_per_dim": 2.0, "lr_readout": 0.5, "lr_bias": 0.5, "lr_query": 0.5, **change}
    with pytest.raises(ValueError) as caught:
        sparse_tokens.two_steps(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
