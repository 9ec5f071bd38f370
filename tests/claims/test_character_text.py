import re

import numpy as np
import pytest

from whichtoken.claims.attention_regression._character_model import CharacterText

TEXT = CharacterText()


def sample(characters=20_000, seed=0):
    return TEXT.decode(TEXT.sample(characters, np.random.default_rng(seed)))


def test_what_can_be_known_by_looking_back_is_right():
    text = sample()
    gifts = re.findall(r"\w+ gives (\w+) (\d+ \w+), so (\w+) has (\d+ \w+)\. ", text)
    questions = re.findall(r"who ([^?]+)\? \w+ ([^.]+)\. ", text)
    sums = re.findall(r"(\d+) and (\d+) is (\d+)\. ", text)
    assert min(len(gifts), len(questions), len(sums)) > 50
    assert all(receiver == owner and given == owned for receiver, given, owner, owned in gifts)
    assert all(asked == answered for asked, answered in questions)
    assert all(int(first) + int(second) == int(total) for first, second, total in sums)


def test_text_has_the_length_asked_for_and_depends_on_the_seed_alone():
    assert len(sample(137)) == 137
    assert sample(500) == sample(500)
    assert sample(500) != sample(500, seed=1)
    assert sample(1000).startswith(sample(500))


def test_codes_and_text_are_the_same_thing():
    codes = TEXT.sample(1000, np.random.default_rng(0))
    np.testing.assert_array_equal(TEXT.encode(TEXT.decode(codes)), codes)
    assert codes.max() < len(TEXT.alphabet)


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="text holds '!', known characters are"):
        TEXT.encode("oh!")
    with pytest.raises(ValueError, match="characters=0 must be at least 1"):
        TEXT.sample(0, np.random.default_rng(0))
