"""Every estimator keeps scikit-learn's contract; those on bags keep it for 3-D and ragged input too."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from whichtoken import BagClassifier, GroupClassifier


@parametrize_with_checks([BagClassifier(instance_map="linear"), GroupClassifier()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BagClassifier()])
def test_scikit_learn_contract_of_bags_with_a_chosen_map(estimator, check):
    check(estimator)


FORMS = ["3-D", "ragged", "2-D"]
WIDTH = 4


def bags(form: str, n: int = 60, seed: int = 0):
    """Bags of width 4 in which one instance of the positive ones is shifted."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.standard_normal((n, 6, WIDTH))
    X[y == 1, 0, 0] += 5
    if form == "ragged":
        return [bag[: rng.integers(1, 7)] for bag in X], y
    return (X.reshape(n, -1), y) if form == "2-D" else (X, y)


def classifier(**options) -> BagClassifier:
    return BagClassifier(
        **{"token_dim": WIDTH, "refine_steps": 5, "instance_map": "linear", "random_state": 0} | options
    )


@pytest.mark.parametrize("form", FORMS)
class TestEveryContainer:
    def test_clones_fit_alike_and_fit_is_idempotent(self, form):
        X, y = bags(form)
        model = classifier().fit(X, y)
        scores = model.decision_function(X)
        np.testing.assert_array_equal(clone(model).fit(X, y).decision_function(X), scores)
        np.testing.assert_array_equal(model.fit(X, y).decision_function(X), scores)

    def test_a_subset_in_another_order_scores_as_before(self, form):
        X, y = bags(form)
        model = classifier().fit(X, y)
        rows = np.array([7, 3, 50])
        part = [X[i] for i in rows] if form == "ragged" else X[rows]
        np.testing.assert_allclose(model.decision_function(part), model.decision_function(X)[rows], rtol=1e-12)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
    def test_dtypes(self, form, dtype):
        X, y = bags(form)
        convert = [np.round(4 * bag).astype(dtype) for bag in X] if form == "ragged" else np.round(4 * X).astype(dtype)
        exact = [np.round(4 * bag) for bag in X] if form == "ragged" else np.round(4 * X)
        options = {"inverse_temperature": 2.0, "C": 1.0}
        found = classifier(**options).fit(convert, y).decision_function(convert)
        wanted = classifier(**options).fit(exact, y).decision_function(exact)
        np.testing.assert_allclose(found, wanted, rtol=1e-2 if dtype == "float32" else 1e-9, atol=1e-3)

    def test_read_only_memory_maps(self, form, tmp_path: Path):
        X, y = bags(form)

        def mapped(array, name):
            np.save(tmp_path / name, array)
            return np.load(tmp_path / name, mmap_mode="r")

        maps = [mapped(bag, f"{i}.npy") for i, bag in enumerate(X)] if form == "ragged" else mapped(X, "X.npy")
        wanted = classifier().fit(X, y).decision_function(X)
        np.testing.assert_array_equal(classifier().fit(maps, y).decision_function(maps), wanted)

    def test_values_that_are_not_finite(self, form):
        X, y = bags(form)
        X[3][..., 0] = np.inf
        with pytest.raises(ValueError, match="contains infinity"):
            classifier().fit(X, y)

    def test_gaps_are_filled_with_the_training_median(self, form):
        X, y = bags(form)
        X[3][..., 0] = np.nan
        model = classifier().fit(X, y)
        filled = [bag.copy() for bag in X] if form == "ragged" else X.copy()
        filled[3][..., 0] = model.fills_[0]
        wanted = classifier().fit(filled, y).decision_function(filled)
        np.testing.assert_allclose(model.decision_function(X), wanted, rtol=1e-9)

    def test_one_class(self, form):
        X, y = bags(form)
        with pytest.raises(ValueError, match="y has one class only, 0; a classifier needs at least two"):
            classifier().fit(X, np.zeros_like(y))

    def test_labels_of_mixed_types(self, form):
        X, y = bags(form)
        with pytest.raises(ValueError, match="y mixes text with other types"):
            classifier().fit(X, ["yes" if label else 0 for label in y])

    def test_labels_for_other_bags(self, form):
        X, y = bags(form)
        with pytest.raises(ValueError, match="y has 59 labels for 60 samples"):
            classifier().fit(X, y[1:])

    def test_pickling_and_model_folder(self, form, tmp_path: Path):
        X, y = bags(form)
        labels = np.where(y == 1, "yes", "no")
        model = classifier().fit(X, labels)
        model.save(tmp_path / "model")
        for copy in (pickle.loads(pickle.dumps(model)), BagClassifier.load(tmp_path / "model")):
            np.testing.assert_array_equal(copy.predict(X), model.predict(X), strict=True)
            np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
            assert copy.get_params() == model.get_params()
            assert copy.pooling_ == model.pooling_

    def test_pipeline_and_grid_search(self, form):
        X, y = bags(form)
        pipe = make_pipeline(FunctionTransformer(), classifier())
        search = GridSearchCV(pipe, {"bagclassifier__inverse_temperature": [0.0, 2.0]}, cv=2).fit(X, y)
        assert search.best_params_ == {"bagclassifier__inverse_temperature": 2.0}
        assert cross_val_score(classifier(), X, y, cv=3).mean() > 0.75

    def test_three_classes(self, form):
        X, y = bags(form)
        for i in range(0, 60, 3):
            y[i] = 2
            if form == "2-D":
                X[i, 1::WIDTH] += 6
            else:
                X[i][:, 1] += 6
        model = classifier().fit(X, y)
        probabilities = model.predict_proba(X)
        assert probabilities.shape == (60, 3)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert model.score(X, y) > 0.8


@pytest.mark.parametrize("container", [np.asarray, list], ids=["3-D", "list"])
def test_an_empty_bag(container):
    X, y = bags("3-D")
    ragged = [*X[:-1], np.empty((0, WIDTH))]
    with pytest.raises(ValueError, match="bag 59 is empty; every bag must have at least one instance"):
        classifier().fit(ragged, y)
    with pytest.raises(ValueError, match="bag 0 is empty"):
        classifier().fit(X[:, :0], y)


def test_groups_name_columns_and_set_output():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((80, 6)), columns=list("abcdef"))
    y = (frame["c"] + frame["d"] > 0).to_numpy()
    model = GroupClassifier({"left": ["a", "b"], "middle": ["c", "d"], "right": ["e", "f"]}, random_state=0).set_output(
        transform="pandas"
    )
    kept = make_pipeline(StandardScaler().set_output(transform="pandas"), model).fit(frame, y).transform(frame)
    assert list(kept.columns) == ["c", "d"]


def test_groups_in_a_grid_search():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 6))
    y = X[:, 2] + X[:, 3] > 0
    search = GridSearchCV(GroupClassifier([0, 0, 1, 1, 2, 2], random_state=0), {"n_groups": [1, 3]}, cv=2).fit(X, y)
    assert search.best_estimator_.selected_groups_[0] == 1


@pytest.mark.parametrize("kind", [BagClassifier, GroupClassifier])
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.nan, "X contains NaN; {} must be finite"),
        (-np.inf, "X contains infinity; {} must be finite"),
        (-1e200, "X contains -1e+200; {} must be below 1e+100 in size, so rescale the column"),
    ],
)
def test_numbers_that_cannot_be_used_are_one_sentence(kind, value, sentence):
    X, y = np.random.default_rng(0).standard_normal((30, 3)), np.arange(30) % 2
    model = kind(random_state=0).fit(X, y)
    X[4, 1] = value
    if np.isnan(value):
        # gaps are filled
        assert np.isfinite(kind().fit(X, y).predict_proba(X)).all()
        return
    for use in (lambda: kind().fit(X, y), lambda: model.predict(X)):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(caught.value) == sentence.format("instances" if kind is BagClassifier else "features")


@pytest.mark.parametrize(("kind", "what"), [(BagClassifier, "bag"), (GroupClassifier, "row")])
def test_nothing_to_learn_from_is_one_sentence(kind, what):
    with pytest.raises(ValueError, match=f"^X is empty; there must be at least one {what}$"):
        kind().fit([], [])
