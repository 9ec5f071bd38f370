"""Bags with several labels or with a number: one score each, exact reasons, and deletions that are the smallest."""

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from whichtoken import BagClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators import BagRegressor, load_estimator
from whichtoken.estimators.bags.data import LabeledBags, as_bags, instance_scaling
from whichtoken.estimators.bags.training import heads, loss_and_gradient

LABELS = ["red", "round", "big"]


@pytest.fixture(scope="module")
def data():
    """Bags of eight instances, of which one brings a label, or moves a number by how much it sticks out."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 8, 4))
    labels = pd.DataFrame(rng.integers(2, size=(160, 3)), columns=LABELS)
    for k, name in enumerate(LABELS):
        X[:, k, k] += 5 * labels[name]
    height = rng.uniform(0, 6, 160)
    bags = rng.standard_normal((160, 8, 4))
    bags[:, 3, 0] += height
    return X, labels, bags, 20 + 3 * height


@pytest.fixture(scope="module")
def labeler(data):
    return BagClassifier(instance_map="linear", random_state=0).fit(data[0], data[1])


@pytest.fixture(scope="module")
def regressor(data):
    return BagRegressor(instance_map="linear", random_state=0).fit(data[2][:120], data[3][:120])


def test_each_of_several_labels_has_the_model_of_a_fit_on_it_alone(data, labeler):
    X, labels = data[:2]
    for k, name in enumerate(LABELS):
        alone = BagClassifier(instance_map="linear", random_state=0).fit(X, labels[name])
        one = labeler.for_label(name)
        assert (alone.decision_function(X) == labeler.decision_function(X)[:, k]).all()
        assert (one.predict(X) == (labeler.predict(X)[:, k] == 1)).all()
        assert (one.predict_proba(X)[:, 1] == labeler.predict_proba(X)[:, k]).all()
        assert one.counterfactuals(X[:20]) == alone.counterfactuals(X[:20])
        assert one.choice_ == alone.choice_
    assert labeler.score(X, labels) > 0.9


def test_two_labels_are_two_scores(data):
    X, labels = data[0], data[1][["red", "big"]]
    model = BagClassifier(instance_map="linear", random_state=0).fit(X, labels)
    assert model.decision_function(X).shape == model.predict(X).shape == (160, 2)


def test_models_of_several_labels_come_back(data, labeler, tmp_path):
    labeler.save(tmp_path / "several")
    again = load_estimator(tmp_path / "several")
    assert again.classes_.tolist() == LABELS
    assert (again.predict_proba(data[0]) == labeler.predict_proba(data[0])).all()
    again.for_label("big").save(tmp_path / "one")
    assert load_estimator(tmp_path / "one").explain(data[0][:1])[0].label in (False, True)


@pytest.mark.parametrize("use", ["explain", "counterfactuals", "certificates"])
def test_what_is_of_one_label_asks_for_one(data, labeler, use):
    with pytest.raises(UsageError, match=r"this model has 3: ask for_label\('red'\)"):
        getattr(labeler, use)(data[0][:2])


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda labels: labels.assign(red=1), {}, "label 'red' is the same for every bag"),
        (lambda labels: labels * 2, {}, "of 0 and 1 for each label"),
        (lambda labels: [["red"], ["red", "big"]] * 80, {}, "MultiLabelBinarizer"),
        (lambda labels: labels, {"class_weight": "balanced"}, "for one class per bag"),
    ],
)
def test_wrong_labels_are_refused(data, change, options, said):
    with pytest.raises(ValueError, match=said):
        BagClassifier(**options).fit(data[0], change(data[1]))


def test_a_label_whose_bags_have_no_weight_is_refused(data):
    with pytest.raises(ValueError, match="sample_weight is 0 for all bags with or for all without label 'red'"):
        BagClassifier().fit(data[0], data[1], sample_weight=data[1]["red"])


def test_slopes_of_the_squared_loss_are_its_derivatives():
    rng = np.random.default_rng(2)
    bags = as_bags([rng.standard_normal((length, 3)) for length in rng.integers(1, 6, 30)])
    data = LabeledBags(bags, rng.standard_normal(30), rng.uniform(0.5, 2, 30), squared=True)
    scaling, both, step = instance_scaling(bags), rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    _, gradient, slope = loss_and_gradient(data, both, 0.3, scaling)
    ahead, behind = (loss_and_gradient(data, both + h * step, 0.3 + h, scaling)[0] for h in (1e-5, -1e-5))
    assert (gradient * step).sum() + slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)


@pytest.mark.parametrize("width", [3, 60])
def test_readouts_of_the_squared_loss_are_those_of_ridge_regression(width):
    rng = np.random.default_rng(3)
    features, y, weights = rng.standard_normal((40, width)), rng.standard_normal(40), rng.uniform(0.5, 2, 40)
    data = LabeledBags(as_bags(features[:, None]), y, weights, squared=True)
    for ridge, (readout, bias) in zip((0.01, 1.0), heads(features, data, (0.01, 1.0)), strict=True):
        peer = Ridge(alpha=ridge * weights.sum()).fit(features, y, weights)
        np.testing.assert_allclose(readout, peer.coef_, atol=1e-10)
        assert bias == pytest.approx(peer.intercept_, abs=1e-10)


def test_mean_pooling_is_ridge_regression_on_the_means(data):
    X, y = data[2], data[3]
    ours = BagRegressor(instance_map="linear", inverse_temperature=0.0, C=1.0, random_state=0).fit(X, y)
    scaling = instance_scaling(as_bags(X))
    means = (X.mean(axis=1) - scaling.mean) / scaling.scale
    peer = Ridge(alpha=1.0).fit(means, (y - y.mean()) / y.std())
    np.testing.assert_allclose(ours.predict(X), y.mean() + y.std() * peer.predict(means), atol=1e-8)


def test_attention_finds_the_instance_that_brings_the_number(data, regressor):
    X, y = data[2:]
    peer = Ridge().fit(X[:120].mean(axis=1), y[:120])
    assert regressor.score(X[120:], y[120:]) > peer.score(X[120:].mean(axis=1), y[120:]) + 0.1
    assert regressor.choice_.pooling == "attention"
    tall = np.flatnonzero(y[120:] > 32) + 120
    assert np.mean([why.reasons[0].instance == 4 for why in regressor.explain(X[tall])]) > 0.9


@pytest.mark.parametrize("change", [-1.0, 0.2])
def test_deletions_that_change_a_number_are_the_smallest(data, regressor, change):
    X = data[2][120:140, :6]
    before = regressor.predict(X)
    sizes = set()
    for bag, number, found in zip(X, before, regressor.counterfactuals(X, change), strict=True):
        least = 0
        for size in range(1, len(bag)):
            kept = [list(rows) for rows in itertools.combinations(range(len(bag)), len(bag) - size)]
            moved = (regressor.predict([bag[rows] for rows in kept]) - number) * np.sign(change)
            if (moved >= abs(change)).any():
                least = size
                break
        assert len(found) == least
        if found:
            (after,) = regressor.predict([np.delete(bag, found, axis=0)])
            assert (after - number) * np.sign(change) >= abs(change) - 1e-9
        sizes.add(least)
    assert len(sizes) > 1


def test_several_queries_confirm_a_deletion(data):
    X, y = data[2:]
    model = BagRegressor(instance_map="linear", n_queries=2, random_state=0).fit(X[:60], y[:60])
    for bag, number, found in zip(X[:20], model.predict(X[:20]), model.counterfactuals(X[:20]), strict=True):
        assert not found or model.predict([np.delete(bag, found, axis=0)])[0] <= number - 1 + 1e-9
    assert not model.explain(X[:1])[0].certified


def test_reasons_of_a_number_add_up_and_keep_its_unit(data, regressor):
    X, y = data[2:]
    tenfold = BagRegressor(instance_map="linear", random_state=0).fit(X[:120], 10 * y[:120])
    for why, number, larger in zip(
        regressor.explain(X[:20]), regressor.predict(X[:20]), tenfold.explain(X[:20], change=-10.0), strict=True
    ):
        assert why.prediction == pytest.approx(number)
        assert why.prediction == pytest.approx(why.bias + sum(reason.contribution for reason in why.reasons))
        assert larger.reasons[0].contribution == pytest.approx(10 * why.reasons[0].contribution, rel=1e-6)
        assert larger.counterfactual == why.counterfactual


def test_a_regressor_reads_files_and_tables_and_comes_back(data, regressor, tmp_path):
    X, y = data[2].astype(np.float32), data[3]
    for k, bag in enumerate(X[:130]):
        np.save(tmp_path / f"{k}.npy", bag)
    paths = [tmp_path / f"{k}.npy" for k in range(130)]
    model = BagRegressor(instance_map="linear", random_state=0).fit(paths[:120], y[:120])
    np.testing.assert_allclose(model.predict(paths[120:]), regressor.predict(X[120:130]), rtol=1e-4)
    assert model.explain(paths[120:])[0].bag == "120"
    rows, ids = X[:120].reshape(-1, 4), np.repeat(np.arange(120), 8)
    table = BagRegressor(instance_map="linear", random_state=0).fit(rows, y[:120], bag=ids)
    assert (
        table.predict(rows, bag=ids)
        == BagRegressor(instance_map="linear", random_state=0).fit(X[:120], y[:120]).predict(X[:120])
    ).all()
    model.save(tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    assert type(again) is BagRegressor
    assert (again.predict(X) == model.predict(X)).all()
    assert again.explain(X[:9]) == model.explain(X[:9])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([1.0] * 160, "nothing to learn"), ([np.nan] * 160, "every bag needs a finite number"), ([1.0, 2.0], "2 numbers")],
)
def test_wrong_numbers_are_refused(data, numbers, said):
    with pytest.raises(ValueError, match=said):
        BagRegressor().fit(data[2], numbers)


@pytest.mark.parametrize("rare", ["least", "largest"])
def test_numbers_of_which_most_are_equal_are_validated(data, rare):
    y = np.where(np.arange(160) % 20 == 0, data[3] * (1 if rare == "largest" else -1), 0.0)
    model = BagRegressor(instance_map="linear", random_state=0).fit(data[2], y)
    assert model.choice_.scores[0].mean_loss > 0
    assert model.choice_.scores[0].attention_loss > 0


def test_a_network_finds_what_no_line_of_the_features_tells():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (240, 4, 2))
    y = 8 * np.abs(X[:, :, 0]).max(axis=1)  # far from the middle, on either side
    model = BagRegressor(random_state=0, cv=2).fit(X[:160], y[:160])
    linear = BagRegressor(instance_map="linear", random_state=0).fit(X[:160], y[:160])
    assert model.choice_.instance_map in ("fourier", "network")
    assert "lowers the validated loss clearly" in model.choice_.reason
    assert model.score(X[160:], y[160:]) > linear.score(X[160:], y[160:]) + 0.3
    for bag, number, found in zip(
        X[160:170], model.predict(X[160:170]), model.counterfactuals(X[160:170]), strict=True
    ):
        assert not found or model.predict([np.delete(bag, found, axis=0)])[0] <= number - 1 + 1e-6
