"""Nothing in a user's text can act on the terminal that shows it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.display.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("a\rb\x00\x9b", "a\\rb\\x00\\x9b".replace("\\r", "\\x0d")),
        ("\ud800", "\\ud800"),
        ("naïve 日本 👨\u200d👩 a\tb\nc", "naïve 日本 👨\u200d👩 a\tb\nc"),
    ],
)
def test_hidden_signs_are_written_out(text, shown):
    assert visible(text) == shown


@given(st.text(st.characters(exclude_characters="\u200c\u200d")))
def test_what_is_shown_can_be_encoded_and_controls_nothing(text):
    shown = visible(text, keep="")
    shown.encode("utf-8")
    assert not {unicodedata.category(sign) for sign in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
