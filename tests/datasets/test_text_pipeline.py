"""The fast way from texts to counts equals the plain one; every option does what it says; real reviews give known sizes."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.datasets import token_counts
from whichtoken.datasets.review_sentences import synthetic_reviews
from whichtoken.datasets.text_pipeline import TextPipeline, prepare
from whichtoken.errors import UsageError

PIECES = [
    "[PAD]",
    "[UNK]",
    "great",
    "film",
    "##s",
    "act",
    "##or",
    "bor",
    "##e",
    "##d",
    "a",
    "b",
    "c",
    "##a",
    "##b",
    "##c",
]


@pytest.fixture
def word_pieces(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def plain_tokens(text, pipeline):
    """One text, word by word, as one would write it."""
    text = re.sub(r"<br\s*/?>", " ", text).lower()
    words = re.sub(r"[^a-z0-9]", " ", re.sub("['`]", "", text)).split()
    stop = {form for word in pipeline.stop_words for form in (word, word.replace("'", ""))}
    stemmer = Stemmer.Stemmer(pipeline.stemmer) if pipeline.stemmer else None
    tokens = []
    for word in words:
        if word not in stop:
            stem = stemmer.stemWord(word) if stemmer else word
            tokens += [stem] if pipeline.word_pieces is None else greedy_pieces(stem)
    return tokens


def greedy_pieces(word):
    pieces = []
    while word:
        prefix = "##" if pieces else ""
        longest = next((n for n in range(len(word), 0, -1) if prefix + word[:n] in PIECES), None)
        if longest is None:
            return ["[UNK]"]
        pieces.append(prefix + word[:longest])
        word = word[longest:]
    return pieces


def plain_counts(texts, pipeline):
    grams = []
    for text in texts:
        tokens = plain_tokens(text, pipeline)
        grams.append(
            Counter(
                " ".join(tokens[i : i + n]) for n in range(1, pipeline.ngrams + 1) for i in range(len(tokens) - n + 1)
            )
        )
    totals = sum(grams, Counter())
    vocabulary = sorted((g for g in totals if totals[g] >= pipeline.least_count), key=lambda g: (g.count(" "), g))
    return vocabulary, [[row[gram] for gram in vocabulary] for row in grams]


TEXTS = st.lists(st.text(alphabet="abcs ' -<br />dont", max_size=40), min_size=1, max_size=6)


@given(
    texts=TEXTS,
    pieces=st.booleans(),
    stemmer=st.sampled_from([None, "english"]),
    ngrams=st.sampled_from([1, 2, 3]),
    least_count=st.sampled_from([1, 2]),
)
def test_distinct_words_give_what_word_by_word_gives(texts, pieces, tmp_path_factory, **options):
    path = Path(tmp_path_factory.getbasetemp()) / "pieces.txt"
    path.write_text("\n".join(PIECES))
    pipeline = TextPipeline(word_pieces=path if pieces else None, **options)
    vocabulary, expected = plain_counts(texts, pipeline)
    if not vocabulary:
        with pytest.raises(ValueError, match="removes every token"):
            pipeline.fit(texts)
        return
    fitted, counts = pipeline.fit_transform(texts)
    assert list(fitted.vocabulary) == vocabulary
    np.testing.assert_array_equal(counts.toarray(), expected)
    np.testing.assert_array_equal(fitted.transform(texts).toarray(), expected)
    for text, row in zip(texts, expected, strict=True):
        found = fitted.table.find(pipeline.place([text])[0])
        np.testing.assert_array_equal(np.bincount(found.columns, minlength=len(vocabulary)), row)


def test_places_are_the_original_words(word_pieces):
    def placed(pipeline, text):
        tokens, places = pipeline.place([text])
        spans = zip(tokens.ids, places.starts, places.stops, strict=True)
        return [(tokens.names[token], text[start:stop]) for token, start, stop in spans]

    pieces = placed(TextPipeline(word_pieces=word_pieces), "He was bored; what an Actor.")
    assert pieces == [("bor", "bored"), ("##e", "bored"), ("act", "Actor"), ("##or", "Actor")]


def test_new_texts_meet_a_fixed_vocabulary():
    fitted = TextPipeline(least_count=1, ngrams=2).fit(["red green", "green blue"])
    counts = fitted.transform(["red red green", "violet", "", "green violet blue"])
    names = fitted.vocabulary
    assert [{names[j]: int(row[j]) for j in np.flatnonzero(row)} for row in counts.toarray()] == [
        {"red": 2, "green": 1, "red green": 1},
        {},
        {},
        {"green": 1, "blue": 1},
    ]


def test_vocabulary_of_the_training_part_does_not_see_the_rest():
    texts, labels = synthetic_reviews(60, np.random.default_rng(0))
    rows = np.arange(40)
    strict = prepare(texts, labels, TextPipeline(least_count=5), fit_on=rows)
    alone = TextPipeline(least_count=5).fit(texts[:40])
    assert strict.vocabulary == alone.vocabulary
    np.testing.assert_array_equal(strict.counts[40:].toarray(), alone.transform(texts[40:]).toarray())


def test_languages():
    fitted = TextPipeline(stemmer="german", stop_words=(), least_count=1).fit(["Häuser und Haus"])
    assert fitted.vocabulary == ("haus", "und")


def test_more_triples_than_whole_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(token_counts, "LARGEST_KEY", 26)  # three distinct tokens have 27 triples
    with pytest.raises(
        ValueError, match="n-grams of 3 tokens are too many for texts with 3 distinct tokens; use at most 2"
    ):
        TextPipeline(ngrams=3, least_count=1).fit(["red green blue"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"word_pieces": ["good", "##ly"]}, r"word_pieces of 2 pieces must hold \[UNK\]"),
        ({"word_pieces": []}, r"word_pieces of 0 pieces must hold \[UNK\]"),
        ({"stemmer": "klingon"}, "stemmer='klingon' must be one of arabic"),
        ({"least_count": 0}, "least_count=0"),
        ({"ngrams": 4}, "ngrams=4"),
        ({"stop_words": "the"}, "stop_words='the'"),
    ],
)
def test_wrong_options_are_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        TextPipeline(**options)


def test_a_vocabulary_file_of_the_wrong_kind(tmp_path):
    for name, content in {"words.txt": b"good\nbad\n", "model.bin": bytes(range(256))}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=r"WordPiece vocabulary|NUL bytes"):
            TextPipeline(word_pieces=tmp_path / name).fit(["good"])
    with pytest.raises(UsageError, match="does not exist"):
        TextPipeline(word_pieces=tmp_path / "none.txt").fit(["good"])


def test_sizes_of_the_yelp_reviews(real_data):
    if not (real_data / "yelp_reviews_1000_1500.parquet").is_file():
        pytest.skip("needs yelp_reviews_1000_1500.parquet and a BERT vocabulary in the folder WHICHTOKEN_DATA")
    table = pd.read_parquet(real_data / "yelp_reviews_1000_1500.parquet").query("label != 0")
    pipeline = TextPipeline(word_pieces=real_data / "bert-base-uncased-vocab.txt")
    data = prepare(table.text.tolist(), table.label.to_numpy(), pipeline)
    assert data.counts.shape == (6809, 2300)
    assert data.lengths.mean() == pytest.approx(145.1, abs=0.05)
    assert data.lengths.max() == 272
    assert data.counts.nnz == pytest.approx(756_126, rel=1e-4)  # counted there with words broken at combining marks


ENGLISH = (
    "the film was good and the end of it is as sad as that of the book, but you are glad that this was made for it " * 8
)
GERMAN = (
    "der Film ist gut und das Ende ist nicht so traurig wie das von dem Buch, aber es ist auch ein Werk mit Herz " * 8
)


@pytest.mark.parametrize(
    ("stemmer", "text", "sentence"),
    [
        ("german", ENGLISH, "which look like english"),
        ("porter", GERMAN, "which look like german"),
        ("russian", ENGLISH, "is for cyrillic letters, and 0 of"),
        ("english", "фильм был хороший и конец его грустный " * 20, "is for latin letters, and 0 of"),
        ("german", GERMAN, None),
        ("english", ENGLISH, None),
        ("serbian", "филм је био добар film je bio dobar " * 20, None),
        ("irish", ENGLISH, None),  # nothing is known of its short words
        ("german", "the film was good", None),  # too short to tell
        ("english", "inc dlrs shr net mln loss year stake oil " * 20, None),  # without short words
    ],
)
def test_a_stemmer_of_another_language_is_one_sentence(stemmer, text, sentence):
    pipeline = TextPipeline(stop_words=(), stemmer=stemmer, least_count=1, words=2)
    tokens = pipeline.tokens([text])
    if sentence is None:
        pipeline.check_language(tokens)
    else:
        with pytest.raises(UsageError, match=sentence):
            pipeline.check_language(tokens)
