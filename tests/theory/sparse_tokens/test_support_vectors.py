"""The interior-point support vector machine: optimality conditions, an independent solver, degenerate cases."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from whichtoken.theory.sparse_tokens.convex_head import support_vectors


def problem(samples, width, shift=0.8, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(samples) < 0.4, 1.0, -1.0)
    return rng.standard_normal((samples, width)) + shift * labels[:, None] * np.eye(1, width), labels


@pytest.mark.parametrize(("samples", "width", "ridge"), [(150, 30, 1e-2), (80, 80, 1e-3), (200, 5, 1.0)])
def test_matches_an_exchange_method(samples, width, ridge):
    features, labels = problem(samples, width)
    readout, bias, gap, _ = support_vectors(features, labels, ridge)
    peer = SVC(kernel="linear", C=1 / (samples * ridge), tol=1e-7).fit(features, labels)
    assert 0 <= gap + 1e-12 < 1e-8
    np.testing.assert_allclose(readout, peer.coef_[0], atol=2e-5)
    assert bias == pytest.approx(peer.intercept_[0], abs=5e-5)


@pytest.mark.parametrize("ridge", [1e-8, 1e-5, 1e-2, 10.0])
def test_gap_closes_in_few_steps_whatever_the_ridge(ridge):
    _, _, gap, steps = support_vectors(*problem(120, 60), ridge)
    assert gap <= 1e-7
    assert steps <= 40


def test_separable_samples_reach_the_largest_margin():
    """Two points at distance 2: the readout is the unit vector between them, both at margin one."""
    features = np.array([[1.0, 3.0], [-1.0, 3.0]])
    readout, bias, _, _ = support_vectors(features, np.array([1.0, -1.0]), 1e-6)
    np.testing.assert_allclose(readout, [1.0, 0.0], atol=1e-9)
    assert bias == pytest.approx(0.0, abs=1e-9)


def test_a_useless_readout_is_zero():
    """Rare positives without a signal: exchange methods stall here, the answer is constant."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(600) < 0.1, 1.0, -1.0)
    readout, bias, gap, _ = support_vectors(rng.standard_normal((600, 20)), labels, 1e-2)
    assert gap <= 1e-10
    assert np.linalg.norm(readout) < 1e-8
    assert bias == pytest.approx(-1.0, abs=1e-8)
