"""Exact test error of a given classifier, against counting on drawn sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.theory import sparse_tokens

TASK = {"length": 6, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.3}
DIM = 12


def random_classifier(rng):
    signal = rng.standard_normal(DIM)
    signal /= np.linalg.norm(signal)
    return signal, 0.6 * signal + 0.3 * rng.standard_normal(DIM), signal + 0.3 * rng.standard_normal(DIM)


@pytest.mark.parametrize("attends", [True, False])
def test_matches_counting_on_drawn_sequences(attends):
    rng = np.random.default_rng(5)
    signal, query, readout = random_classifier(rng)
    tokens, labels = SparseTokens(**TASK, dim=DIM, signal=signal).sample(40_000, rng)
    weight = np.exp(1.7 * tokens @ query) if attends else np.ones(tokens.shape[:2])
    features = np.einsum("il,ild->id", weight / weight.sum(axis=1, keepdims=True), tokens)
    counted = (labels * (features @ readout - 1.1) <= 0).mean()
    exact = sparse_tokens.exact_error(
        readout, -1.1, signal, query=query if attends else None, inverse_temperature=1.7, **TASK
    )
    assert exact == pytest.approx(counted, abs=4 * math.sqrt(counted / labels.size))


@pytest.mark.parametrize("signal_tokens", [1, 2])
def test_vectorized_matches_counting_on_drawn_sequences(signal_tokens):
    rng = np.random.default_rng(6)
    task = {**TASK, "signal_tokens": signal_tokens}
    signal, _, _ = random_classifier(rng)
    weights = rng.standard_normal((6, DIM)) * 0.2 + np.outer(rng.random(6), signal)
    source = SparseTokens(**task, dim=DIM, signal=signal)
    tokens, labels = source.sample(40_000, rng)
    counted = (labels * (np.einsum("ild,ld->i", tokens, weights) - 0.5) <= 0).mean()
    del task["length"]
    exact = sparse_tokens.exact_error_vectorized(weights, -0.5, signal, **task)
    assert exact == pytest.approx(counted, abs=4 * math.sqrt(counted / labels.size))


def test_query_along_the_signal_needs_no_second_direction():
    signal = np.eye(DIM)[0]
    aligned = sparse_tokens.exact_error(signal, -1.0, signal, query=signal, **TASK)
    almost = sparse_tokens.exact_error(signal, -1.0, signal, query=signal + 1e-7 * np.eye(DIM)[1], **TASK)
    assert almost == pytest.approx(aligned, rel=1e-5)


@pytest.mark.parametrize(("bias", "error"), [(-1.0, 0.3), (1.0, 0.7), (0.0, 0.5)])
def test_without_readout_the_bias_alone_answers(bias, error):
    signal = np.eye(DIM)[0]
    assert sparse_tokens.exact_error(np.zeros(DIM), bias, signal, query=signal, **TASK) == error
    rest = {name: value for name, value in TASK.items() if name != "length"}
    assert sparse_tokens.exact_error_vectorized(np.zeros((6, DIM)), bias, signal, **rest) == error


def test_signal_of_length_zero_is_refused():
    with pytest.raises(ValueError, match=r"signal of shape \(12,\) must be a finite non-zero vector"):
        sparse_tokens.exact_error(np.ones(DIM), 0.0, np.zeros(DIM), **TASK)
