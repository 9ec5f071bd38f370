"""One relevant token per sequence, and signed frequencies that are exactly what Assumption 4 asks for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.datasets import RelevantTokens


@given(
    relevant=st.integers(1, 5),
    irrelevant=st.integers(1, 9),
    length=st.integers(1, 7),
    equal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_assumption_4_holds_exactly(relevant, irrelevant, length, equal, seed):
    source = RelevantTokens(length=length, relevant=relevant, irrelevant=irrelevant, equal=equal)
    data = source.sample(2 * relevant, np.random.default_rng(seed))
    dense, classes = data.counts.toarray(), source.token_classes
    np.testing.assert_array_equal(dense[:, classes != 0].sum(axis=1), 1)
    np.testing.assert_array_equal(dense @ classes, data.labels)  # the one relevant token is of the sequence's own label
    np.testing.assert_array_equal(data.lengths, length)
    signed = data.labels @ dense
    assert not signed[classes == 0].any()
    if equal:
        np.testing.assert_array_equal(np.abs(signed[classes != 0]), 2)


def test_unequal_frequencies_follow_one_over_rank():
    source = RelevantTokens(relevant=3, equal=False)
    data = source.sample(20_000, np.random.default_rng(0))
    share = np.abs(data.labels @ data.counts)[:3] / 20_000
    np.testing.assert_allclose(share, np.array([1, 1 / 2, 1 / 3]) / (11 / 6), atol=0.015)


def test_assumptions_can_be_broken():
    two = RelevantTokens(relevant_per_sequence=2)
    data = two.sample(8, np.random.default_rng(0))
    dense = data.counts.toarray()
    np.testing.assert_array_equal(dense[:, two.token_classes != 0].sum(axis=1), 2)
    assert dense[:, two.token_classes != 0].max() == 1
    free = RelevantTokens(paired=False).sample(8, np.random.default_rng(0))
    assert (free.labels @ free.counts)[RelevantTokens().token_classes == 0].any()


def test_wrong_values_are_refused():
    with pytest.raises(ValueError, match="pairs=3 must be a multiple of 4 for equal frequencies of relevant=4 tokens"):
        RelevantTokens().sample(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="pairs=3 must be a multiple of 2 "):
        RelevantTokens(relevant_per_sequence=2).sample(3, np.random.default_rng(0))
    two = RelevantTokens(relevant_per_sequence=2).sample(2, np.random.default_rng(0))
    np.testing.assert_array_equal(two.counts.sum(axis=0)[:8], 1)
    with pytest.raises(ValueError, match="relevant_per_sequence=5"):
        RelevantTokens(relevant_per_sequence=5)
    with pytest.raises(ValueError, match="irrelevant=0"):
        RelevantTokens(irrelevant=0)
