"""Tokens in levels: the law that was asked for, and the truth that comes with it."""

import numpy as np
import pytest

from whichtoken.datasets import LevelTokens


def test_paper_sizes():
    law = LevelTokens()
    assert law.size == 2048  # with N_k = 4 + 2**k; the 2**(k - 1) of the text would make 1538
    assert law.sizes == (6, 8, 12, 20, 36, 68, 132, 260)
    assert LevelTokens(set_sizes=[4 + 2 ** (k - 1) for k in range(1, 9)]).size == 1538
    # a relevant token is 21 times rarer than an irrelevant one
    mean = (law.probabilities(1) + law.probabilities(-1)) / 2
    assert mean[-1] / mean[0] == pytest.approx(21.4, abs=0.1)


def test_posterior_difference_follows_from_the_law_by_bayes():
    law = LevelTokens(noise=(0.4, 0.1), irrelevant=5, share=0.3, length=9)
    positive, negative = law.probabilities(1), law.probabilities(-1)
    assert positive.sum() == pytest.approx(1)
    assert negative.sum() == pytest.approx(1)
    np.testing.assert_allclose(law.posterior_difference, (positive - negative) / (positive + negative), atol=1e-15)
    np.testing.assert_array_equal(np.sign(law.posterior_difference), law.token_classes)
    assert len(law.vocabulary) == law.size == len(set(law.vocabulary))


def test_sampled_frequencies_match_the_law():
    law = LevelTokens(noise=(0.3, 0.05), set_sizes=(2, 3), irrelevant=4, share=0.4, length=50)
    data = law.sample(4000, np.random.default_rng(0))
    assert set(data.lengths) == {50}
    for label in (-1, 1):
        rows = data.subset(data.labels == label)
        frequency = rows.counts.sum(axis=0) / rows.lengths.sum()
        expected = law.probabilities(label)
        deviation = (frequency - expected) / np.sqrt(expected / rows.lengths.sum())
        assert np.abs(deviation).max() < 4


def test_same_generator_same_counts():
    first, second = (LevelTokens(length=8).sample(20, np.random.default_rng(3)) for _ in range(2))
    assert (first.counts != second.counts).nnz == 0
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": 0},
        {"noise": (0.6,)},
        {"noise": ()},
        {"share": 0.0},
        {"irrelevant": 0},
        {"set_sizes": (1, 2)},
        {"set_sizes": (0,), "noise": (0.1,)},
        {"share": float("nan")},
    ],
)
def test_wrong_values_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        LevelTokens(**arguments)
