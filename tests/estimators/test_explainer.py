"""The page that explains itself says what Python says, in V8; what it holds, leaves out and refuses."""

from __future__ import annotations

import json
import random
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_engine import PageEngine

from whichtoken import TextClassifier
from whichtoken.app.movie_reviews import EXAMPLES, REVIEW, bundled_movie_model
from whichtoken.datasets.text_pipeline import ENGLISH_STOP_WORDS
from whichtoken.errors import UsageError
from whichtoken.estimators.text.explainer import explainer_page, pack_model, ported_stemmers

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
BREAKS = ("l'été", "qu’il", "dell'arte", "&notit;", "&#128;", "&#xd800;", "&#1;", "&eacute;", "&nosuch;", "<b>x</b>", "<div class='a'>", "<dıv>", "<İ>", "<ſ>", "<!-- x -->", "​", "ำ", "ｶﾞ", "ﬁ", "한", "<br>", "<br />", "<BR/>", "<br\x1f>", "<br\ufeff>", "< br>", "&amp;", "&#39;", "’s", "l'", "\u200d", "\x85", "\ud83d")


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
    "pieces": {"word_pieces": ["[UNK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
                               "good", "film", "##ing", "##s", "中", "ᄒ", "##ᅡ", "##ᆫ", "α", "##β", "е"]},
    "three classes": {"classes": 3},
    "five classes, pairs": {"classes": 5, "ngram_range": (1, 2), "sublinear_tf": False},
}  # fmt: skip


@cache
def fitted(kind: str) -> TextClassifier:
    """A model of some kind, fitted on texts of all scripts, with values in the precision of its page."""
    options = dict(KINDS[kind])
    classes = options.pop("classes", 2)
    draw = random.Random(3)
    known = [text for text in EXAMPLES.read_text(encoding="utf-8").split() for _ in range(2)]
    words = known + ["good", "films", "filming", "acting", "actors", "running", "ΣΊΣΥΦΟΣ", "中文電影", "한국 영화", "नमस्ते"] * 20
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 30))) for _ in range(240)] + strange_texts(120, words)
    labels = [f"label {draw.randrange(classes)}" for _ in texts]
    model = TextClassifier(random_state=0, min_df=2, C=3.0, loss="logistic", **options).fit(texts, labels)
    if classes > 2:
        model.values_ = model.values_.astype(np.float32).astype(np.float64)
    return model


def compare(model: TextClassifier, texts: list[str], engine: PageEngine) -> None:
    """Everything that the page says is what Python says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanations, certificates = model.explain(texts), model.certificates(texts)
    for text, page, why, (_, proof) in zip(texts, engine.explain(texts), explanations, certificates.iterrows(), strict=True):
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
