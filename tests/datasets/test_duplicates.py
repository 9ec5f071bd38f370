"""Texts that repeat others."""

import numpy as np

from whichtoken.datasets.duplicates import duplicate_groups, text_signatures
from whichtoken.datasets.word_split import split_words

RNG = np.random.default_rng(0)
WORDS = [f"w{k}" for k in range(3000)]


def groups(texts):
    return duplicate_groups(text_signatures(split_words(texts)))


def random_texts(number, length):
    return [" ".join(RNG.choice(WORDS, length)) for _ in range(number)]


def test_equal_words_are_one_group_whatever_stands_between_them():
    same, near = groups(["A good film!", "a GOOD film", "good a film", "", " ...", "another one"])
    assert [same[0] == same[1], same[0] == same[2], same[3] == same[4]] == [True, False, True]
    assert len(set(same)) == len(set(near)) == 4


def test_one_changed_word_of_twenty_is_a_near_copy_and_unrelated_texts_are_none():
    texts = random_texts(400, 20)
    changed = []
    for text in texts:
        words = text.split()
        words[RNG.integers(20)] = "other"
        changed.append(" ".join(words))
    same, near = groups(texts + changed)
    assert len(set(same)) == 800
    found = near[:400] == near[400:]
    assert found.mean() > 0.98, found.mean()
    assert len(set(near[:400])) == 400


def test_opposite_short_sentences_are_no_copies():
    _, near = groups(["the film was good", "the film was bad", "i like it", "i hate it"])
    assert len(set(near)) == 4


def test_a_template_that_most_texts_share_is_no_copy():
    texts = [
        f"dear customer number {k} your ticket has been received and will be answered within two days"
        for k in range(50)
    ]
    same, near = groups(texts)
    assert len(set(near)) == len(set(same)) == 50


def test_signatures_do_not_depend_on_the_other_texts():
    texts = random_texts(5, 8)
    assert np.array_equal(text_signatures(split_words(texts))[:, 3:4], text_signatures(split_words(texts[3:4])))
    assert text_signatures(split_words([])).shape == (48, 0)
