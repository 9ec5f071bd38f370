"""Thresholds, class weights, pairs by validation, copies, and reasons in short."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV

from whichtoken import TextClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators.text.learning import decision_threshold, held_out_splits

RNG = np.random.default_rng(0)


def rare_class(number=600, share=0.1):
    """Texts of noise words in which one word out of three hints at a rare class, not always."""
    labels = (RNG.random(number) < share).astype(int)
    noise = RNG.integers(0, 200, (number, 8))
    hint = RNG.random(number) < np.where(labels == 1, 0.6, 0.08)
    return [
        " ".join([*(f"n{k}" for k in row), *(["alarm"] if h else [])]) for row, h in zip(noise, hint, strict=True)
    ], labels


TEXTS, LABELS = rare_class()
FRESH, TRUE = rare_class(2000)


def f1(labels, said):
    return 2 * (labels & said).sum() / (labels.sum() + said.sum())


@pytest.mark.parametrize("threshold", [0.2, "f1", (1.0, 8.0)], ids=str)
def test_labels_reasons_and_deletions_are_those_of_the_threshold(threshold, tmp_path):
    model = TextClassifier(threshold=threshold, random_state=0).fit(TEXTS, LABELS)
    said, shares = model.predict(FRESH), model.predict_proba(FRESH)
    assert 0 < model.choice_.threshold < 0.5
    assert np.array_equal(said, (shares[:, 1] > model.choice_.threshold).astype(int))
    assert np.array_equal(said, (model.decision_function(FRESH) > 0).astype(int))
    assert np.array_equal(shares, TextClassifier(random_state=0).fit(TEXTS, LABELS).predict_proba(FRESH))
    counts = model._vocabulary.count(FRESH[:200])
    for row, item in enumerate(model.explain(FRESH[:200])):
        assert item.label == said[row]
        assert item.decision == pytest.approx(item.bias + item.contributions.sum(), abs=1e-12)
        if item.counterfactual:
            kept = counts[[row]].toarray()
            kept[0, item.flips] = 0
            assert (model._outputs(sparse.csr_array(kept))[0, 0] > model._offset) != (said[row] == 1)
    model.save(tmp_path)
    again = TextClassifier.load(tmp_path)
    assert np.array_equal(again.predict(FRESH), said)
    assert np.array_equal(again.certificates(FRESH[:50]), model.certificates(FRESH[:50]))


def test_thresholds_do_what_they_are_asked_for():
    plain = TextClassifier(random_state=0).fit(TEXTS, LABELS)
    by_f1 = TextClassifier(threshold="f1", random_state=0).fit(TEXTS, LABELS)
    assert f1(TRUE, by_f1.predict(FRESH)) > f1(TRUE, plain.predict(FRESH)) + 0.05
    by_cost = TextClassifier(threshold=(1, 8), random_state=0).fit(TEXTS, LABELS).predict(FRESH)
    cost = [
        ((said == 1) & (TRUE == 0)).sum() + 8 * ((said == 0) & (TRUE == 1)).sum()
        for said in (by_cost, plain.predict(FRESH))
    ]
    assert cost[0] < cost[1]


def test_the_best_cut_is_found_by_trying_all():
    shares, second = RNG.random(60).round(1).clip(0.1, 0.9), RNG.random(60) < 0.4
    cuts = np.linspace(-0.05, 1.05, 12)
    by_f1 = [f1(second, shares > cut) for cut in cuts]
    assert f1(second, shares > decision_threshold(shares, second, "f1")) == pytest.approx(max(by_f1))
    costs = [((shares > cut) & ~second).sum() + 3 * ((shares <= cut) & second).sum() for cut in cuts]
    cut = decision_threshold(shares, second, (1, 3))
    assert ((shares > cut) & ~second).sum() + 3 * ((shares <= cut) & second).sum() == min(costs)


@pytest.mark.parametrize("wrong", [0, 1, -0.1, "best", (1,), (0, 1), (1, "a"), True, np.nan], ids=str)
def test_a_threshold_that_is_none_is_named(wrong):
    with pytest.raises(
        UsageError,
        match=r"threshold=.* must be a probability between 0 and 1, 'f1', or two costs of errors",
    ):
        TextClassifier(threshold=wrong).fit(TEXTS, LABELS)


def test_a_threshold_is_for_two_classes():
    with pytest.raises(ValueError, match="threshold='f1' is for two classes and dim=None; y has 3 classes"):
        TextClassifier(threshold="f1").fit(TEXTS, np.arange(len(TEXTS)) % 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_class_weights_move_labels_and_leave_probabilities_calibrated(classes):
    labels, true = (
        np.where((y == 0) & (np.arange(len(y)) % 4 == 0), 2, y) if classes > 2 else y for y in (LABELS, TRUE)
    )
    plain = TextClassifier(random_state=0).fit(TEXTS, labels)
    model = TextClassifier(class_weight="balanced", random_state=0).fit(TEXTS, labels)
    shares = model.predict_proba(FRESH)
    assert np.abs(shares.mean(axis=0) - np.bincount(true) / len(true)).max() < 0.03
    for hinted, chance in ((True, 0.06 / 0.132), (False, 0.04 / 0.868)):  # of the rare class, by Bayes' rule
        known = sum(("alarm" in text) == hinted for text in TEXTS)
        rows = np.array([("alarm" in text) == hinted for text in FRESH])
        # the training labels say a chance up to its standard error
        assert abs(shares[rows, 1].mean() - chance) < 3 * np.sqrt(chance * (1 - chance) / known), (hinted, chance)
    losses, other, ignorant = (
        -np.log(p[np.arange(len(true)), true])
        for p in (shares, _balanced_regression(labels), np.bincount(true)[None].repeat(len(true), 0) / len(true))
    )
    more = losses - other
    assert more.mean() < 2 * more.std() / np.sqrt(len(more)), (losses.mean(), other.mean())
    assert losses.mean() < ignorant.mean()
    assert (model.predict(FRESH) == 1).sum() > 1.5 * (plain.predict(FRESH) == 1).sum()
    assert np.array_equal(model.predict(FRESH), (shares * model.decision_weights_).argmax(axis=1))


def _balanced_regression(labels):
    """Probabilities of balanced logistic regression of scikit-learn, divided by the weights of the classes."""
    words = CountVectorizer().fit(TEXTS)
    peer = LogisticRegressionCV(
        Cs=[0.01, 0.1, 1.0],
        class_weight="balanced",
        scoring="neg_log_loss",
        l1_ratios=(0,),
        use_legacy_attributes=False,
    ).fit(words.transform(TEXTS), labels)
    corrected = peer.predict_proba(words.transform(FRESH)) * np.bincount(labels)
    return corrected / corrected.sum(axis=1, keepdims=True)


def test_pairs_are_taken_where_they_help_and_only_there(tmp_path):
    words = RNG.integers(0, 2, (400, 2))
    ordered = [f"{'ab'[a]} {'cd'[b]} x{k % 37}" for k, (a, b) in enumerate(words)]
    by_pair, by_word = words[:, 0] ^ words[:, 1], words[:, 0]
    pairs = TextClassifier(ngram_range="auto", random_state=0).fit(ordered, by_pair)
    assert pairs.score(ordered, by_pair) == 1.0
    assert "a c" in pairs.vocabulary_
    pairs.save(tmp_path)
    assert np.array_equal(TextClassifier.load(tmp_path).predict(ordered), by_pair)
    noisy = np.where(RNG.random(400) < 0.2, 1 - by_word, by_word)
    single = TextClassifier(ngram_range="auto", random_state=0).fit(ordered, noisy)
    assert not any(" " in name for name in single.vocabulary_)


def test_copies_of_held_out_documents_are_not_fitted_on():
    labels, copies = np.arange(40) % 2, np.tile(np.arange(20), 2)
    for fit, held in held_out_splits(labels, None, 5, 0, copies):
        assert not set(copies[fit]) & set(copies[held])
    assert held_out_splits(labels, None, 5, 0, labels) == []  # two distinct documents: nothing can be held out


def test_every_document_twice_changes_little():
    order = RNG.permutation(np.tile(np.arange(len(TEXTS)), 2))
    once, twice = (
        TextClassifier(random_state=0).fit([TEXTS[i] for i in rows], LABELS[rows])
        for rows in (np.arange(len(TEXTS)), order)
    )
    assert once.vocabulary_ == twice.vocabulary_
    losses = [-np.log(model.predict_proba(FRESH)[np.arange(len(TRUE)), TRUE]).mean() for model in (once, twice)]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_top_words_merge_inflections_and_show_where_they_stand():
    texts = ["we love it", "she loved the plot", "a loving film", "it bores me", "boring plot", "so bored"] * 6
    model = TextClassifier(random_state=0).fit(texts, ["+", "+", "+", "-", "-", "-"] * 6)
    table = model.top_words(1, texts)
    assert table["class"].tolist() == ["+", "-"]
    assert [set(forms.split(", ")) for forms in table["forms"]] == [
        {"love", "loved", "loving"},
        {"bores", "boring", "bored"},
    ]
    assert table["count"].tolist() == [18, 18]
    assert all(word in example for word, example in zip(table["word"], table["example"], strict=True))
    assert "the" not in set(model.top_words(9)["word"])
    assert model.top_words(9, language=None)["forms"].str.contains(",").sum() == 0


def test_mistakes_name_what_speaks_for_the_wrong_label():
    texts = ["good film", "bad film"] * 10
    model = TextClassifier(random_state=0).fit(texts, ["+", "-"] * 10)
    table = model.mistakes(["good film", "good plan", "bad film"], ["-", "-", "-"])
    assert table.iloc[0][["true", "predicted", "documents", "token", "holding"]].tolist() == ["-", "+", 2, "good", 1.0]
    assert table.iloc[0]["contribution"] > 0
    assert model.mistakes(texts, ["+", "-"] * 10).empty


def test_mistakes_leave_out_words_that_speak_alike_in_documents_labeled_rightly():
    names = [f"{a}{b}" for a in "bcdfg" for b in "aeiou"]
    texts = [f"the good {name}" for name in names] + [f"bad {name}" for name in names]
    model = TextClassifier(random_state=0).fit(texts, ["+"] * 25 + ["-"] * 25)
    assert model.token_importance().set_index("token")["value"]["the"] < 0  # for "+"
    new = ["the good end", "the good plan", "the bad bad bad end", "the bad bad plan"]
    table = model.mistakes(new, ["-"] * 4)
    assert table["token"].tolist() == ["good"]
    assert table.iloc[0][["documents", "holding", "holding_right"]].tolist() == [2, 1.0, 0.0]


def test_a_vectorizer_names_the_columns():
    texts = ["good film", "bad film"] * 10
    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(texts)
    model = TextClassifier(random_state=0).fit(counts, [1, 0] * 10).name_tokens(vectorizer)
    assert model.counterfactuals(counts[:1]) == [["good"]]
    with pytest.raises(
        ValueError, match="2 names are given; a model of a count matrix takes one for each of its columns"
    ):
        model.name_tokens(["a", "b"])


def test_weights_of_tf_idf_are_refused_unless_they_are_asked_for():
    features = TfidfVectorizer().fit_transform(TEXTS)
    with pytest.raises(ValueError, match="X holds rows of length 1, as TfidfVectorizer gives them; give counts"):
        TextClassifier().fit(features, LABELS)
    model = TextClassifier(sublinear_tf=False, use_idf=False, random_state=0).fit(features, LABELS)
    assert model.score(features, LABELS) > 0.9
