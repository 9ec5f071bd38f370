"""Texts with several labels or with a number: one attention, exact reasons, and deletions that are the smallest."""

import itertools
import warnings
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

from whichtoken import TextClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators import TextRegressor, load_estimator
from whichtoken.estimators.text.learning import RidgeProblem, solve_values

WORDS = ["goal", "match", "vote", "law", "film", "star", "apple", "tree", "road", "sky"]


@pytest.fixture(scope="module")
def data():
    """Texts, three labels that single words bring, and a number that words move."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(400)]
    held = {word: np.array([word in text.split() for text in texts]) for word in WORDS}
    labels = pd.DataFrame({"sport": held["goal"] | held["match"], "law": held["vote"], "film": held["film"]}).astype(
        int
    )
    move = dict(zip(WORDS, rng.normal(size=10), strict=True))
    numbers = [10 + sum(move[word] for word in text.split()) + 0.3 * rng.normal() for text in texts]
    return texts, labels, np.array(numbers)


@pytest.fixture(scope="module")
def labeler(data):
    return TextClassifier(random_state=0).fit(data[0][:300], data[1][:300])


@pytest.fixture(scope="module")
def regressor(data):
    return TextRegressor(random_state=0).fit(data[0][:300], data[2][:300])


def test_several_labels_are_found_as_by_one_model_for_each(data, labeler):
    texts, labels, _ = data
    found = labeler.predict(texts[300:])
    assert found.shape == (100, 3)
    assert labeler.classes_.tolist() == ["sport", "law", "film"]
    peer = make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression(C=30.0)))
    peers = peer.fit(texts[:300], labels[:300]).predict(texts[300:])
    ours, theirs = (f1_score(labels[300:], part, average="micro") for part in (found, peers))
    assert ours > theirs - 0.02
    probabilities = labeler.predict_proba(texts[300:])
    assert ((probabilities > 0.5) == found).all()
    assert np.log(np.where(labels[300:] == 1, probabilities, 1 - probabilities)).mean() > -0.2


def test_one_of_several_labels_is_a_model_with_reasons(data, labeler):
    texts = data[0]
    for place, name in enumerate(labeler.classes_):
        one = labeler.for_label(name)
        assert (one.predict(texts) == labeler.predict(texts)[:, place]).all()
        np.testing.assert_allclose(one.predict_proba(texts)[:, 1], labeler.predict_proba(texts)[:, place], rtol=1e-12)
        assert one.selection_ is labeler.selection_  # the attention is shared
    sport = labeler.for_label("sport")
    assert set(sport.top_words(2)["word"][2:]) == {"goal", "match"}
    both = next(text for text in texts if "goal" in text.split() and "match" in text.split())
    assert set(sport.counterfactuals([both])[0]) == {"goal", "match"}


@pytest.mark.parametrize("use", ["explain", "counterfactuals", "certificates", "top_words"])
def test_what_is_of_one_label_asks_for_one(data, labeler, use):
    with pytest.raises(UsageError, match=r"this model has 3: ask for_label\('sport'\)"):
        getattr(labeler, use)(*([] if use == "top_words" else [data[0][:2]]))


def test_models_of_several_labels_come_back(data, labeler, tmp_path):
    labeler.save(tmp_path / "several")
    again = TextClassifier.load(tmp_path / "several")
    assert again.classes_.tolist() == ["sport", "law", "film"]
    np.testing.assert_array_equal(again.predict_proba(data[0]), labeler.predict_proba(data[0]))
    again.for_label("law").save(tmp_path / "one")
    assert TextClassifier.load(tmp_path / "one").explain(data[0][:1])[0].label in (False, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda labels: labels.assign(law=1), "label 'law' is the same for every document"),
        (lambda labels: labels * 2, "of 0 and 1 for each label"),
        (lambda labels: labels[:5], "one row for each of 400 documents"),
    ],
)
def test_wrong_labels_are_refused(data, change, said):
    with pytest.raises(ValueError, match=said):
        TextClassifier().fit(data[0], change(data[1]))


@pytest.mark.parametrize(
    "options", [{"class_weight": "balanced"}, {"threshold": 0.3}, {"n_queries": 2}, {"min_class": 2}]
)
def test_what_is_for_classes_is_refused(data, options):
    with pytest.raises(UsageError, match="is for one class per document"):
        TextClassifier(**options).fit(data[0], data[1])


def test_the_squared_loss_is_solved_as_by_ridge_regression(data):
    from scipy import sparse

    rng = np.random.default_rng(1)
    shares, wanted = sparse.random_array((80, 12), density=0.4, rng=rng, format="csr"), rng.normal(size=80)
    problem = RidgeProblem(shares, np.arange(80), wanted, np.full(80, 3.0), "squared", np.append(np.ones(12), 1e9))
    found = solve_values(problem, 1e-12)
    peer = Ridge(alpha=1 / 3.0).fit(shares.toarray(), wanted)
    np.testing.assert_allclose(found.values, peer.coef_, atol=1e-5)
    assert found.bias == pytest.approx(peer.intercept_, abs=1e-5)


def test_numbers_are_predicted_as_by_ridge_regression(data, regressor):
    texts, _, numbers = data
    peer = make_pipeline(TfidfVectorizer(), RidgeCV(np.logspace(-3, 2, 10))).fit(texts[:300], numbers[:300])
    assert regressor.score(texts[300:], numbers[300:]) > peer.score(texts[300:], numbers[300:]) - 0.03


def test_reasons_of_a_number_add_up_and_keep_its_unit(data, regressor):
    texts, _, numbers = data
    tenfold = TextRegressor(random_state=0).fit(texts[:300], 10 * numbers[:300])
    for why, predicted, larger in zip(
        regressor.explain(texts[:20]), regressor.predict(texts[:20]), tenfold.explain(texts[:20]), strict=True
    ):
        assert why.prediction == pytest.approx(predicted)
        assert why.prediction == pytest.approx(why.bias + sum(reason.contribution for reason in why.reasons))
        assert larger.reasons[0].contribution == pytest.approx(10 * why.reasons[0].contribution, rel=1e-3)


@pytest.mark.parametrize("change", [-1.0, 0.7])
def test_deletions_that_change_a_number_are_the_smallest(data, regressor, change):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a text may lose all its words
        for text in data[0][300:315]:
            distinct, least = sorted(set(text.split())), 0
            for size in range(1, len(distinct) + 1):
                rest = [
                    " ".join(word for word in text.split() if word not in some)
                    for some in itertools.combinations(distinct, size)
                ]
                if ((regressor.predict(rest) - regressor.predict([text])) * np.sign(change) >= abs(change)).any():
                    least = size
                    break
            assert len(regressor.counterfactuals([text], change)[0]) == least


def test_a_regressor_reads_columns_and_comes_back(data, tmp_path):
    texts, _, numbers = data
    table = pd.DataFrame({"note": texts, "days": np.arange(400.0) % 7})
    model = TextRegressor(columns=["days"], random_state=0).fit(table, numbers + 2 * table["days"])
    words = TextRegressor(random_state=0).fit(texts, numbers + 2 * table["days"])
    assert model.score(table, numbers + 2 * table["days"]) > words.score(texts, numbers + 2 * table["days"]) + 0.1
    (why,) = model.explain(table[6:7])
    assert why.columns[0].contribution == pytest.approx(2 * (6 - table["days"].mean()), rel=0.05)
    model.save(tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    assert type(again) is TextRegressor
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    assert deepcopy(again).counterfactuals(table[:3]) == model.counterfactuals(table[:3])
    assert again.explain(table[:9]) == model.explain(table[:9])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([1.0] * 400, "nothing to learn"), ([np.nan] * 400, "finite number"), ([1.0, 2.0], "2 numbers")],
)
def test_wrong_numbers_are_refused(data, numbers, said):
    with pytest.raises(ValueError, match=said):
        TextRegressor().fit(data[0], numbers)
