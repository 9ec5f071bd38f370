"""Words, and where in the text they stand."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.datasets.text_pipeline import place_words, split_words


def words(text):
    split = split_words([text])
    return [split.names[i] for i in split.ids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop!<br /><br/>It's 10/10", ["dont", "stop", "its", "10", "10"]),
        ("snake_case e-mail", ["snake", "case", "e", "mail"]),
        ("L’été, ÉTÉ; cafe\u0301s", ["lété", "été", "cafe\u0301s"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("ΟΔΟΣ", ["οδος"]),
        ("' '' — ", []),
        ("", []),
    ],
)
def test_words_of_a_text(text, expected):
    assert words(text) == expected


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60) | st.text(alphabet="aB'’<br />-İΣ.é9", max_size=30))
def test_places_hold_the_words_that_are_split(text):
    texts = ["İ one", text, "two"]  # neighbors: places are those in the own text
    split, places = place_words(texts)
    assert [split.names[i] for i in split.ids] == [word for each in texts for word in words(each)]
    spans = np.split(np.stack(places, axis=1), np.cumsum(split.lengths)[:-1])
    assert (spans[0].tolist(), spans[2].tolist()) == ([[0, 1], [2, 5]], [[0, 3]])
    for start, stop in spans[1]:
        # lower case alone depends on the neighbors (final sigma), so only the places are compared
        assert len(words(text[start:stop])) == 1
    assert all(before[1] <= after[0] for before, after in pairwise(spans[1]))


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=40))
def test_ascii_is_the_rule_as_one_would_write_it(text):
    cleaned = re.sub(r"<br\s*/?>", " ", text, flags=re.IGNORECASE).lower()
    assert words(text) == re.sub(r"[^a-z0-9]", " ", re.sub("['`]", "", cleaned)).split()


def test_what_is_no_text_is_named():
    with pytest.raises(ValueError, match="text 1 is of type float; texts must be strings"):
        split_words(["a", float("nan")])
