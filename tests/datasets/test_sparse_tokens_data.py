"""The sparse-token generator: moments, streams that repeat themselves, and the fast feature sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ks_2samp

from whichtoken.claims.sparse_tokens._tasks import attended_features
from whichtoken.datasets import SparseTokens
from whichtoken.theory.sparse_tokens.two_step import attention_features

TASK = {"length": 6, "signal_tokens": 2, "strength": 4.0, "prevalence": 0.3}


def test_signal_sits_in_exactly_the_asked_number_of_positive_tokens():
    source = SparseTokens(6, 2, 1000.0, 0.3, dim=5, signal=np.arange(1.0, 6.0))
    tokens, labels = source.sample(500, np.random.default_rng(0))
    hot = tokens @ source.direction > 500
    np.testing.assert_array_equal(hot.sum(axis=1), np.where(labels > 0, 2, 0))
    assert np.linalg.norm(source.direction) == pytest.approx(1.0)


def test_moments_are_those_of_the_task():
    source = SparseTokens(**TASK, dim=4)
    tokens, labels = source.sample(20_000, np.random.default_rng(1))
    assert (labels > 0).mean() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 20_000))
    mean = tokens[labels > 0].mean(axis=0)  # (length, dim)
    tolerance = 4 * math.sqrt((1 + 16 * 2 / 9) / 6000)
    np.testing.assert_allclose(mean[:, 0], 4.0 * 2 / 6, atol=tolerance)
    np.testing.assert_allclose(mean[:, 1:], 0.0, atol=tolerance)
    np.testing.assert_allclose(np.cov(tokens[labels < 0].reshape(-1, 4).T), np.eye(4), atol=0.03)


def test_positions_follow_the_given_law():
    weights = np.array([5.0, 3.0, 1.0, 1.0, 0.0, 0.0])
    source = SparseTokens(6, 1, 1000.0, 0.5, dim=2, positions=weights)
    tokens, labels = source.sample(20_000, np.random.default_rng(2))
    share = (tokens[labels > 0, :, 0] > 500).mean(axis=0)
    np.testing.assert_allclose(share, weights / 10, atol=4 * math.sqrt(0.25 / 10_000))


def test_stream_repeats_itself_and_never_holds_more_than_a_chunk():
    stream = SparseTokens(**TASK, dim=3).stream(50, np.random.default_rng(3), chunk=16)
    first, second = list(stream), list(stream)
    assert [len(labels) for _, labels in first] == [16, 16, 16, 2]
    for (tokens, labels), (again, labels_again) in zip(first, second, strict=True):
        np.testing.assert_array_equal(tokens, again)
        np.testing.assert_array_equal(labels, labels_again)
    assert not np.array_equal(first[0][0], first[1][0])


@pytest.mark.parametrize("chunk", [-1, 0, 2.5])
def test_chunks_hold_at_least_one_sequence(chunk):
    with pytest.raises(ValueError, match=f"chunk={chunk} must be a whole number of at least 1"):
        SparseTokens(**TASK, dim=3).stream(50, np.random.default_rng(3), chunk=chunk)


def test_streams_of_one_generator_differ():
    rng = np.random.default_rng(4)
    source = SparseTokens(**TASK, dim=3)
    assert source.stream(5, rng).seed != source.stream(5, rng).seed


@pytest.mark.parametrize("alignment", [-0.5, 0.8])
def test_fast_features_have_the_distribution_of_full_sequences(alignment):
    rng, dim, tau = np.random.default_rng(5), 5, 1.3
    signal = np.zeros(dim)
    signal[:2] = alignment, math.sqrt(1 - alignment**2)
    source = SparseTokens(**TASK, dim=dim, signal=signal)
    fast, fast_labels = attended_features(source, 8000, alignment, tau, rng)
    slow, slow_labels = attention_features(source.stream(8000, rng), tau * np.eye(dim)[0])
    for label in (-1, 1):
        a, b = fast[fast_labels == label], slow[slow_labels == label]
        views = [lambda f: f[:, 0], lambda f: f[:, 1], lambda f: f[:, 2], lambda f: (f**2).sum(axis=1)]
        for view in views:
            distance = ks_2samp(view(a), view(b)).statistic
            assert distance < 2.0 * math.sqrt(1 / len(a) + 1 / len(b))  # p-value about 6e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signal_tokens": 6}, "signal_tokens=6 must be smaller than length=6"),
        ({"dim": 1}, "dim=1 must be a whole number of at least 2"),
        ({"positions": [1.0, 2.0]}, "positions of shape (2,) must be length=6 finite weights"),
        ({"positions": [1.0, 0, 0, 0, 0, 0]}, "positions must have at least signal_tokens=2 weights above 0; it has 1"),
        ({"signal": np.zeros(3)}, "signal of shape (3,) must be a finite non-zero vector of dim=3"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    with pytest.raises(ValueError) as caught:
        SparseTokens(**{**TASK, "dim": 3, **change})
    assert message in str(caught.value)
