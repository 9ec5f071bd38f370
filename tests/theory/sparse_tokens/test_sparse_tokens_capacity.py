"""Capacity: reference values, Cover's theorem, identities and a linear program at small dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from whichtoken.claims.sparse_tokens._tasks import attended_features
from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.theory import sparse_tokens

# separation, prevalence, capacity of a mixture of two Gaussians
MIXTURES = [
    (0, 0.5, 2.00000),
    (0, 0.3, 2.23611),
    (0, 0.1, 3.9129),
    (1, 0.5, 2.34118),
    (2, 0.5, 3.70003),
    (2, 0.3, 4.10921),
    (3, 0.5, 7.69749),
]
# length, signal tokens, strength, prevalence, alignment, temperature, capacity
ATTENTION = [
    (5, 1, 2.0, 0.5, 0.8, 1.0, 2.5494),
    (5, 1, 2.0, 0.5, 0.3, 1.0, 2.2796),
    (5, 2, 1.5, 0.3, 0.7, 1.5, 2.8873),
    (10, 1, 3.0, 0.5, 0.9, 1.0, 3.5410),
    (10, 1, 5.0, 0.5, 0.0, 1.0, 2.316),
    (10, 1, 5.0, 0.5, 0.6, 1.0, 9.30),
    (10, 3, 2.0, 0.2, 0.0, 1.0, 3.436),
    (10, 3, 2.0, 0.2, 0.9, 1.0, 5.437),
]


@pytest.mark.parametrize(("separation", "prevalence", "value"), MIXTURES)
def test_mixture_matches_reference_value(separation, prevalence, value):
    task = {"length": 4, "signal_tokens": 1, "strength": 2.0 * separation, "prevalence": prevalence}
    assert sparse_tokens.capacity(model="pooled", **task) == pytest.approx(value, rel=1.5e-6, abs=6e-6)


def test_no_signal_and_balanced_classes_give_covers_two():
    task = {"length": 7, "signal_tokens": 2, "strength": 0.0, "prevalence": 0.5}
    assert sparse_tokens.capacity(model="pooled", **task) == pytest.approx(2.0, abs=1e-8)
    assert sparse_tokens.capacity(**task, alignment=0.5, inverse_temperature=0.0) == pytest.approx(2.0, abs=1e-8)
    assert sparse_tokens.capacity(**task, alignment=0.5, inverse_temperature=1.0) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("row", ATTENTION)
def test_attention_matches_reference_value(row):
    names = ("length", "signal_tokens", "strength", "prevalence", "alignment", "inverse_temperature")
    assert sparse_tokens.capacity(**dict(zip(names, row, strict=False))) == pytest.approx(row[-1], rel=1.2e-3)


def test_vectorized_capacity_is_length_times_pooled():
    task = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
    pooled = sparse_tokens.capacity(model="pooled", **task)
    assert pooled == pytest.approx(2.950, abs=5e-4)
    assert sparse_tokens.capacity(model="vectorized", **task) == pytest.approx(10 * pooled, rel=1e-12)


def test_query_zero_is_pooling():
    task = {"length": 10, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}
    pooled = sparse_tokens.capacity(model="pooled", **task)
    assert pooled == pytest.approx(4.572, abs=6e-4)
    still = sparse_tokens.capacity(**task, alignment=0.3, inverse_temperature=0.0)
    assert still == pytest.approx(pooled, rel=1e-8)


def test_linear_program_finds_the_transition():
    """At dimension 60: separable well below the capacity, not separable well above it."""
    dim, rng = 60, np.random.default_rng(0)
    source = SparseTokens(5, 1, 2.0, 0.5, dim=dim)
    limit = sparse_tokens.capacity(
        length=5, signal_tokens=1, strength=2.0, prevalence=0.5, alignment=0.8, inverse_temperature=1.0
    )

    def separable(samples):
        features, labels = attended_features(source, samples, 0.8, 1.0, rng)
        design = labels[:, None] * np.hstack([features, np.ones((samples, 1))])
        return linprog(np.zeros(dim + 1), A_ub=-design, b_ub=-np.ones(samples), bounds=(None, None)).status == 0

    share = [np.mean([separable(math.ceil(factor * limit * dim)) for _ in range(8)]) for factor in (0.75, 1.3)]
    assert share[0] >= 0.85
    assert share[1] <= 0.15
