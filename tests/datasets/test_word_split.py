"""Words in any script, and where in the text they stand."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whichtoken import TextClassifier
from whichtoken.datasets.word_split import has_markup, place_words, split_words
from whichtoken.estimators.model_folder import description_checksum

PAGE = Path(__file__).parents[2] / "docs" / "text_classifier.md"


def words(text, version=2):
    split = split_words([text], version)
    return [split.names[i] for i in split.ids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop!<br /><br/>It's 10/10", ["dont", "stop", "its", "10", "10"]),
        ("snake_case e-mail", ["snake", "case", "e", "mail"]),
        ("L’été, ÉTÉ; cafe\u0301s aujourd'hui", ["l", "été", "été", "cafés", "aujourdhui"]),
        ("d'you o'clock rock'n'roll ma'am", ["dyou", "oclock", "rocknroll", "maam"]),
        ("ΟΔΟΣ", ["οδος"]),
        ("ＦＵＬＬ ﬁne ﾊﾞｽ Batman™ co\u00adop ½", ["full", "fine", "バ", "ス", "batman", "coop", "½"]),
        ("I ❤️ ❤ 😂😂👍🏽 👨‍👩‍👧 🇩🇪🇫🇷", ["i", "❤", "❤", "😂", "😂", "👍🏽", "👨‍👩‍👧", "🇩🇪", "🇫🇷"]),
        ("a\u200db \ufe0f", ["ab"]),
        ("caf&eacute; &#39;s &lt;b&gt;x&lt;/b&gt; &amp;", ["café", "s", "x"]),
        ('<p class="font">a < b, <me@home.org> <!-- no --></P>', ["a", "b", "me", "home", "org"]),
        ("' '' — ", []),
        ("", []),
    ],
)
def test_words_of_a_text(text, expected):
    assert words(text) == expected


def test_the_words_of_older_models_stay_what_they_were():
    assert words("L’été, ÉTÉ; cafe\u0301s <b>我爱</b> &amp; 😂", 1) == [
        "lété", "été", "cafe\u0301s", "b", "我爱", "b", "amp",
    ]  # fmt: skip


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=40), st.sampled_from([1, 2]))
def test_ascii_is_the_rule_as_one_would_write_it(text, version):
    text = text.replace("<", "").replace("&", "")  # markup has tests of its own
    lines = text.lower()
    if version == 2:
        lines = re.sub(r"['`]", "'", lines)
        lines = re.sub(
            r"(?:(?<![a-z0-9'])[cdjlmnst]|qu|ll|un|est|cos|dov|com|anch)'(?=[aeiouh]|y(?!ou))", r"\g<0> ", lines
        )
    assert words(text, version) == re.sub(r"[^a-z0-9]", " ", re.sub("['`]", "", lines)).split()


anything = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
mixed = st.text(alphabet="aB'’<br />-İΣ.é9e\u0301我ラﾊﾞอร่❤️😂\u200d👍🏽🇩🇪&amp;ﬁ각\u1112\u1161\u11ab\u200c", max_size=30)


@given(anything | mixed, st.sampled_from([1, 2]))
@example("e\u00ad\u0301 &lt;ﬁ&gt;", 2)
def test_places_hold_the_words_that_are_split(text, version):
    texts = ["One İ", text, "two"]  # neighbors: places are those in the own text
    split, places = place_words(texts, version)
    assert [split.names[i] for i in split.ids] == [word for each in texts for word in words(each, version)]
    spans = np.split(np.stack(places, axis=1), np.cumsum(split.lengths)[:-1])
    assert (spans[0].tolist(), spans[2].tolist()) == ([[0, 3], [4, 5]], [[0, 3]])
    assert all(0 <= start < stop <= len(text) for start, stop in spans[1])
    # one character may become two words of version 2, such as ゟ
    assert all(before[2 - version] <= after[0] for before, after in pairwise(spans[1]))


def language_rows():
    part = PAGE.read_text("utf-8").split("## Any script")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\S[^|]*?) +\| (.+?) \| `(.+?)` \|$", part, re.M)
    return [(language, text, found.split(" · ")) for language, text, found in rows]


@pytest.mark.parametrize(
    ("language", "text", "found"), language_rows(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_the_page_shows_the_words_of_each_language(language, text, found):
    assert words(text) == found


def test_the_page_has_twenty_languages():
    assert len({language for language, _, _ in language_rows()}) >= 20


def test_characters_of_scripts_without_spaces_count_in_pairs():
    texts = ["很好 good film", "不好 good film", "ดีมาก"] * 4
    names = TextClassifier(min_df=1, random_state=0).fit(texts, ["+", "-", "+"] * 4).vocabulary_
    assert {"很 好", "不 好", "好", "ดี ม า"} <= set(names)
    assert "good film" not in names
    assert "好 good" not in names


def test_a_pair_of_characters_can_decide_and_is_found_again(tmp_path):
    texts = ["很好的电影", "不好的电影"] * 10
    model = TextClassifier(random_state=0).fit(texts, [1, 0] * 10)
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert again.predict(["不好"]).tolist() == [0]
    assert np.array_equal(again.predict_proba(texts), model.predict_proba(texts))
    reason = next(reason for reason in again.explain(["电影不好"])[0].reasons if reason.token == "不 好")
    assert reason.places == [(2, 4)]


def test_markup_is_seen_where_it_is_left_out():
    assert [has_markup(text) for text in ("a<br>b", "x &amp; y", "a < b & c", "<me@home.org>")] == [
        True,
        True,
        False,
        False,
    ]


def test_what_is_no_text_is_named():
    with pytest.raises(ValueError, match="text 1 is of type float; texts must be strings"):
        split_words(["a", float("nan")])


def test_a_folder_of_before_keeps_its_words(tmp_path):
    texts = ["l'été <b>很好</b>", "l'hiver <b>不好</b>"] * 6
    model = TextClassifier(random_state=0).fit(texts, [1, 0] * 6)
    model.save(tmp_path)
    described = json.loads((tmp_path / "model.json").read_text("utf-8"))
    del described["sha256"], described["parameters"]["tokenizer"]["version"]
    text = json.dumps({**described, "sha256": description_checksum(described)}, ensure_ascii=False)
    (tmp_path / "model.json").write_text(text, "utf-8")
    with pytest.warns(UserWarning, match="no known word"):
        assert not TextClassifier.load(tmp_path).explain(["l'été"])[0].reasons  # lété in those days
    assert TextClassifier.load(tmp_path)._vocabulary.tokenizer.words == 1
