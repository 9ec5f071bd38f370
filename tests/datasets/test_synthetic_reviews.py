"""Reviews of our own: readable, reproducible, with words whose weight is known."""

import re

import numpy as np
import pytest

from whichtoken.datasets.review_sentences import synthetic_reviews, word_strengths


def test_posterior_differences_are_those_promised():
    texts, labels = synthetic_reviews(4000, np.random.default_rng(0))
    counts = {word: np.zeros(2) for word in word_strengths()}
    for text, label in zip(texts, labels, strict=True):
        for word in re.findall("[a-z]+", text.lower()):
            if word in counts:
                counts[word][int(label > 0)] += 1
    for word, strength in word_strengths().items():
        negative, positive = counts[word] / [np.sum(labels < 0), np.sum(labels > 0)]
        measured = (positive - negative) / (positive + negative)
        error = np.sqrt(1 / counts[word].sum())
        assert abs(measured - strength) < 4 * error, (word, measured, strength)


def test_same_generator_same_texts():
    first, second = (synthetic_reviews(5, np.random.default_rng(7)) for _ in range(2))
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])
    assert len(set(first[0])) == 5
    assert "{" not in "".join(first[0])


def test_none_at_all_is_refused():
    with pytest.raises(ValueError, match="n=0"):
        synthetic_reviews(0, np.random.default_rng(0))
