"""Token pairs: only pairs tell the label."""

import numpy as np
import pytest

from whichtoken.datasets.trained_embeddings import TokenPairs


def test_single_tokens_say_nothing_and_pairs_say_what_is_stated():
    law = TokenPairs(kinds=4, length=6, noise=0.1)
    data = law.sample(40_000, np.random.default_rng(0))
    counts, labels = data.counts.toarray(), data.labels
    assert (counts.sum(axis=1) == 6).all()
    single = (counts > 0).T @ labels / (counts > 0).sum(axis=0)
    assert np.abs(single).max() < 0.05
    left, right = counts[:, :4].argmax(axis=1), counts[:, 4:8].argmax(axis=1)
    assert (counts[:, :8].sum(axis=1) == 2).all()
    for i in range(4):
        for j in range(4):
            found = labels[(left == i) & (right == j)].mean()
            assert found == pytest.approx(law.posterior_difference[i, j], abs=0.05)


def test_pairs_are_in_the_order_of_their_posterior():
    law = TokenPairs(kinds=3)
    pairs = law.pairs()
    assert np.array_equal(pairs.labels, np.sign(law.posterior_difference).ravel())
    assert np.array_equal(np.flatnonzero(pairs.counts.toarray()[5]), [1, 5])  # left 1 with right 2


@pytest.mark.parametrize("settings", [{"kinds": 1}, {"length": 1}, {"noise": 0.5}, {"irrelevant": 0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        TokenPairs(**settings)
