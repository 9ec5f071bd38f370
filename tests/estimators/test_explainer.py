"""The page that explains itself says what Python says, in V8; what it holds, leaves out and refuses."""

from __future__ import annotations

import json
import random
import re
import warnings
from copy import copy
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from page_engine import PageEngine

from whichtoken import TextClassifier
from whichtoken.app.movie_reviews import EXAMPLES, REVIEW, bundled_movie_model
from whichtoken.datasets.text_pipeline import ENGLISH_STOP_WORDS
from whichtoken.errors import UsageError
from whichtoken.estimators.text.explainer import explainer_page, pack_model, page_script, ported_stemmers, reduced

# alphabets of several scripts, marks that join their letters, emoji with and without joiners, digits, spaces and apostrophes
SCRIPTS = {
    "latin": "abcdefghijklmnopqrstuvwxyzABCDEÀÉÎÖÜßæøåčŁİıſﬁǅ",
    "greek": "αβγδεΣσςΆΈϊΐΣΣ",
    "cyrillic": "абвгдеёЖЗИЙяюЮ",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأؤئ\u064b\u064c\u064d\u0651ـ٠١٢",
    "hebrew": "אבגדהוזחט\u05b0\u05b7ךם",
    "devanagari": "अआइकखगघच\u093e\u093f\u0940\u094d\u0902१२३",
    "thai": "กขคงจฉชซ\u0e31\u0e34\u0e48\u0e49๑๒",
    "han": "中文電影很好看的不是我們在這個人大來上國和地到以說時要就出會",
    "kana": "ひらがなカタカナーゝヾガギグ",
    "hangul": "한국어영화가나다라마바사",
    "astral": "𝒜𝓑𐐀𐐨𐒰𐓘𠀀𠀁𞤀𞤢",
    "emoji": "😀😃👍🏽❤️👩‍👩‍👧🇩🇪🎬☺⭐",
    "marks": "e\u0301a\u0308o\u0323\u0302n\u0303\u20dd",
    "signs": " \t\n.,;:!?-–—/()'’`´\"«»&<>#@0123456789½²Ⅷ",
}
BREAKS = (
    "l'été",
    "qu’il",
    "dell'arte",
    "&notit;",
    "&#128;",
    "&#xd800;",
    "&#1;",
    "&eacute;",
    "&nosuch;",
    "<b>x</b>",
    "<div class='a'>",
    "<dıv>",
    "<İ>",
    "<ſ>",
    "<!-- x -->",
    "​",
    "ำ",
    "ｶﾞ",
    "ﬁ",
    "한",
    "<br>",
    "<br />",
    "<BR/>",
    "<br\x1f>",
    "<br\ufeff>",
    "< br>",
    "&amp;",
    "&#39;",
    "’s",
    "l'",
    "\u200d",
    "\x85",
    "\ud83d",
)


def strange_texts(count: int, words: list[str]) -> list[str]:
    """Texts of one or more scripts, with known words between them."""
    draw = random.Random(7)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 25)):
            kind = draw.random()
            if kind < 0.3 and words:
                word = draw.choice(words)
                parts.append(draw.choice((word, word.upper(), word.title(), word[:1] + "'" + word[1:])))
            elif kind < 0.4:
                parts.append(draw.choice(BREAKS[:-1]))
            else:
                letters = SCRIPTS[draw.choice(list(SCRIPTS))]
                parts.append("".join(draw.choices(letters, k=draw.randint(1, 8))))
            parts.append(draw.choice(("", " ", " ", "\n")))
        texts.append("".join(parts))
    return texts


KINDS: dict[str, dict[str, Any]] = {
    "words": {},
    "pairs of stems": {"ngram_range": (1, 2), "stemmer": "english", "stop_words": ENGLISH_STOP_WORDS},
    "triples, plain counts, no null token": {"ngram_range": (1, 3), "sublinear_tf": False, "null": 0.0},
    "pieces": {"word_pieces": ["[UNK]", *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase),
                               "good", "film", "##ing", "##s", "中", "ᄒ", "##ᅡ", "##ᆫ", "α", "##β", "е"]},
    "three classes": {"classes": 3, "class_weight": "balanced"},
    "threshold and weights": {"threshold": 0.3, "class_weight": {"label 0": 2.0, "label 1": 1.0}},
    "five classes, pairs": {"classes": 5, "ngram_range": (1, 2), "sublinear_tf": False},
}  # fmt: skip


@cache
def fitted(kind: str) -> TextClassifier:
    """A model of some kind, fitted on texts of all scripts, with values in the precision of its page."""
    options = dict(KINDS[kind])
    classes = options.pop("classes", 2)
    draw = random.Random(3)
    known = [text for text in EXAMPLES.read_text(encoding="utf-8").split() for _ in range(2)]
    words = (
        known
        + ["good", "films", "filming", "acting", "actors", "running", "ΣΊΣΥΦΟΣ", "中文電影", "한국 영화", "नमस्ते"] * 20
    )
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 30))) for _ in range(240)] + strange_texts(120, words)
    labels = [f"label {draw.randrange(classes)}" for _ in texts]
    if (
        "threshold" in options
    ):  # without any signal the probabilities are all equal, and the threshold is far from every output
        labels = [f"label {int('acting' in text)}" for text in texts]
    model = TextClassifier(random_state=0, min_df=2, C=3.0, loss="logistic", **options).fit(texts, labels)
    if classes > 2:
        model.values_ = model.values_.astype(np.float32).astype(np.float64)
    return model


def compare(model: TextClassifier, texts: list[str], engine: PageEngine) -> None:
    """Everything that the page says is what Python says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanations, certificates = model.explain(texts), model.certificates(texts)
    for text, page, why, (_, proof) in zip(
        texts, engine.explain(texts), explanations, certificates.iterrows(), strict=True
    ):
        assert model.classes_[page["label"]] == why.label, text
        assert abs(page["decision"] - why.decision) < 1e-9, text
        assert abs(page["bias"] - why.bias) < 1e-9, text
        assert np.allclose(page["probabilities"], why.class_probabilities, atol=1e-9), text
        ours = {name: rest for name, *rest in page["reasons"]}
        assert len(ours) == len(why.reasons), text
        for reason in why.reasons:
            count, attention, contribution, places = ours[reason.token]
            assert count == reason.count, text
            assert [tuple(place) for place in places] == reason.places, (text, reason.token)
            assert abs(attention - reason.attention) < 1e-9, text
            assert abs(contribution - reason.contribution) < 1e-9, text
        assert page["deletion"] == (why.counterfactual or []), text
        assert page["to"] == (None if why.flips_to is None else str(why.flips_to)), text
        assert page["certificate"] == {name: int(number) for name, number in proof.items()}, text


@pytest.mark.parametrize("kind", KINDS)
def test_page_explains_as_python_does(kind: str) -> None:
    model = fitted(kind)
    compare(model, ["", " ", "good", *strange_texts(250, list(model.vocabulary_)[:400])], PageEngine(model))


def test_labels_of_ten_thousand_texts_of_other_scripts_are_those_of_python() -> None:
    model = fitted("words")
    texts = strange_texts(10_000, list(model.vocabulary_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.predict(texts)
    assert [model.classes_[k] for k in PageEngine(model).labels(texts)] == expected.tolist()


@pytest.mark.parametrize("language", ported_stemmers())
def test_stems_are_those_of_pystemmer(language: str) -> None:
    """Words of the examples, and random ones that end as the language's words do."""
    import Stemmer

    draw = random.Random(language)
    table = (files("whichtoken.display") / f"assets/explainer/snowball/{language}-stemmer.js").read_text(
        encoding="utf-8"
    )
    parts = sorted(set(re.findall(r'\["([^"]+)"', table)))
    letters = [*sorted(set("".join(parts)) | set("aeiouyst")), "𝒜", "é"]
    words = [
        "".join(draw.choices(letters, k=draw.randint(0, 6)))
        + draw.choice(parts)
        + draw.choice(("", draw.choice(parts)))
        for _ in range(4000)
    ]
    script = page_script(language, ("tokenize.js",))
    racer = pytest.importorskip("py_mini_racer").MiniRacer()
    racer.eval(f"{script}\nconst stem = stemWith(makeStemmer());0")
    found = json.loads(str(racer.eval(f"JSON.stringify({json.dumps(words)}.map(stem))")))
    wrong = [
        (word, ours, theirs)
        for word, ours, theirs in zip(words, found, Stemmer.Stemmer(language).stemWords(words), strict=True)
        if ours != theirs
    ]
    assert wrong == []


@cache
def movie_model() -> TextClassifier:
    return bundled_movie_model().classifier


@pytest.mark.slow
def test_movie_reviews_are_explained_as_python_does(real_data: Path) -> None:
    """2000 labels, and everything else of 1000 reviews; `make sweep` compares all 50 000 labels."""
    import pandas as pd

    texts = pd.read_parquet(real_data / "imdb_reviews_50k.parquet", columns=["text"])["text"].iloc[::25].tolist()
    engine = PageEngine(movie_model())
    assert [movie_model().classes_[k] for k in engine.labels(texts)] == movie_model().predict(texts).tolist()
    compare(movie_model(), texts[::2], engine)


def test_a_page_of_thirty_thousand_words_has_at_most_three_megabytes(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 12))) for _ in range(30_500)]
    texts = [" ".join(words[k : k + 500] * 2) for k in range(0, len(words), 500) for _ in range(5)]
    model = TextClassifier(C=1.0, null=0.3, loss="logistic", attention_C=0.0).fit(
        texts, [k % 2 for k in range(len(texts))]
    )
    saved = model.save_explainer(tmp_path / "page.html")
    assert saved.words >= 30_000
    assert saved.size <= 3_000_000


def test_what_is_left_out_is_in_no_page_and_is_counted(tmp_path: Path) -> None:
    texts = [f"good film by smith secret{k}" for k in range(20)] * 2 + [
        f"bad film by jones veiled{k}" for k in range(20)
    ] * 2
    model = TextClassifier(random_state=0, min_df=1, ngram_range=(1, 2)).fit(texts, [1] * 40 + [0] * 40)
    saved = model.save_explainer(
        tmp_path / "page.html", redact=["Smith", "Jones"], compare_on=["smith", "good film", "bad film"]
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search("smith|jones|secret|veiled", page)
    # names are written without what they share with the one before
    names, name = [], ""
    for line in json.loads(page.split('id="model">')[1].split("</script>")[0])["names"].split("\n"):
        name = name[: int(line[0], 36)] + line[1:]
        names.append(name)
    assert names == [name for name in model.vocabulary_ if not re.search("smith|jones|secret|veiled", name)]
    assert set(saved.left_out) == {"redacted", "in fewer than 5 documents"}
    assert "by smith" in saved.left_out["redacted"]
    with pytest.warns(UserWarning, match="no known"):
        (default,) = model.predict(["redacted"])  # what a page says of a text none of whose words it holds
    assert (saved.compared, saved.changed) == (3, int(model.predict(["smith"])[0] != default))
    few = model.save_explainer(tmp_path / "few.html", most_words=2, min_df=1)
    assert {"by", "film", "film by"} <= set(few.left_out["beyond the 2 that say most"])


def test_redacted_words_stand_nowhere_in_a_page(tmp_path: Path) -> None:
    """Not in an example, the title or the card either, nor with the s of a possessive or in another form."""
    texts = ["a fine film by smith", "smiths worst film"] * 10
    model = TextClassifier(random_state=0, stemmer="english").fit(texts, ["good", "bad"] * 10)
    card = {
        "data": {"rows": 20, "file": "smith.csv"},
        "evaluation": {"notes": ["SMITH nearly is the label"], "test": 5},
    }
    examples = ["By Smith, of Smith’s films", "an actor&#39;s film: acting", "Smithson"]
    path = tmp_path / "page.html"
    model.save_explainer(path, examples, min_df=1, redact=["Smith", "actor"], title="Mr. Smith decides", card=card)
    packed = json.loads(path.read_text(encoding="utf-8").split('id="model">')[1].split("</script>")[0])
    assert packed["examples"] == ["By ___, of ___ films", "an ___ film: acting", "Smithson"]
    assert packed["title"] == "Mr. ___ decides"
    assert packed["card"]["data"]["file"] == "___.csv"
    assert packed["card"]["evaluation"] == {"notes": ["___ nearly is the label"], "test": 5}
    assert "smith" not in packed["names"]
    with pytest.raises(UsageError, match="a word of the label good is to be redacted, but a page shows labels"):
        model.save_explainer(path, redact="GOOD film")


def test_the_smaller_model_is_what_the_page_computes_with() -> None:
    model = fitted("words")
    kept = np.arange(len(model.vocabulary_)) % 3 > 0
    smaller = reduced(model, kept)
    compare(smaller, strange_texts(60, list(model.vocabulary_)[:200]), PageEngine(smaller))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"analyzer": str.split},
            "splits texts by a function, which does not run in a page; fit it with analyzer=None",
        ),
        ({"stemmer": "greek"}, "stemmer='greek' does not run in a page; these do: danish, dutch, english"),
    ],
)
def test_what_a_page_could_only_approximate_is_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    model = TextClassifier(random_state=0, **options).fit(["good film", "bad film"] * 10, [1, 0] * 10)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        model.save_explainer(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_counts_and_empty_pages_and_large_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(UsageError, match="fitted on counts"):
        TextClassifier().fit(np.eye(4), [0, 1, 0, 1]).save_explainer(path)
    model = TextClassifier(random_state=0).fit(["good film", "bad film"] * 3, [1, 0] * 3)
    several = copy(model).set_params(n_queries=2)
    several.selection_ = np.repeat(model.selection_, 2, axis=1)
    with pytest.raises(UsageError, match="n_queries=2: the page shows models with one query"):
        several.save_explainer(path)
    blended = copy(model)
    blended._encoder = object()
    with pytest.raises(UsageError, match="has an encoder, which does not run in a page"):
        blended.save_explainer(path)
    broken = copy(model)
    broken.vocabulary_ = ("bad\nword", *model.vocabulary_[1:])
    with pytest.raises(UsageError, match="a token with a line break"):
        broken.save_explainer(path)
    with pytest.raises(UsageError, match=r"hold no word: all 3 tokens are left out; lower min_df=99"):
        model.save_explainer(path, min_df=99)
    with pytest.raises(ValueError, match="'good film' is one text; a list of texts is expected"):
        model.save_explainer(path, "good film")
    monkeypatch.setattr("whichtoken.estimators.explainer_page.LARGEST", 1000)
    with pytest.raises(UsageError, match=r"0.001 MB, for 3 tokens and 2 classes; most_words=\d+ would fit"):
        model.save_explainer(path, min_df=1)
    stems = TextClassifier(stemmer="english").fit(["good film", "bad film"] * 3, [1, 0] * 3)
    monkeypatch.setattr("Stemmer.version", lambda: "3.0.1")
    with pytest.raises(UsageError, match=r"PyStemmer 3\.0\.1 may stem otherwise"):
        stems.save_explainer(path)
    assert not path.exists()


def test_an_old_folder_says_that_documents_were_not_counted(tmp_path: Path) -> None:
    assert movie_model().save_explainer(tmp_path / "page.html", min_df=100).left_out == {}
    with pytest.raises(
        UsageError, match="min_df=101: the model was saved before documents were counted, and only min_df=100"
    ):
        movie_model().save_explainer(tmp_path / "page.html", min_df=101)


def test_documents_of_a_token_are_saved_and_updated(tmp_path: Path) -> None:
    model = TextClassifier(random_state=0).fit(["good good film", "bad film"] * 5, [1, 0] * 5)
    model.partial_fit(["good bad"], [1])
    model.save(tmp_path / "model")
    assert dict(zip(model.vocabulary_, TextClassifier.load(tmp_path / "model")._statistics[3], strict=True)) == {
        "bad": 6, "film": 10, "good": 6,
    }  # fmt: skip


def test_nothing_in_a_text_or_a_name_can_end_its_element() -> None:
    texts = ["</script><script>alert(1)</script>", "<!--", "]]>", "\u2028"]
    model = TextClassifier(random_state=0).fit(
        ["good film", "bad film"] * 5, ["</script><img src=x onerror=alert(1)>", "b"] * 5
    )
    page = explainer_page(model, texts, title="</title><script>alert(1)</script>", notes=["</script>"])
    inside = page.split('id="model">')[1].split("</script>")[0]
    assert json.loads(inside)["examples"] == texts
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "unsafe" not in page.split("Content-Security-Policy")[1].split(">")[0]


def test_packed_numbers_are_exact_for_two_classes() -> None:
    packed = pack_model(movie_model(), [REVIEW])
    assert packed["selection"]["bits"] == packed["values"]["bits"] == 64
    assert packed["logNull"] == movie_model().log_null_
