"""One name per idea: what every estimator is called with, and what it offers once fitted."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from whichtoken import AttentionRegressor, BagClassifier, GroupClassifier, TextClassifier
from whichtoken.estimators import BagRegressor, TextRegressor, load_estimator

SETTINGS = {"cv", "n_jobs", "verbose", "random_state"}  # of all
STRENGTH = {
    TextClassifier: "C", TextRegressor: "C", BagClassifier: "C", BagRegressor: "C", GroupClassifier: "C",
    AttentionRegressor: "alpha",
}  # fmt: skip
OLD = {"ridge", "damping", "progress", "validation_fraction", "seed"}  # other names of the same ideas
METHODS = {"fit", "predict", "save", "load", "score"}
REASONS = {"predict_proba", "decision_function", "explain", "counterfactuals", "certificates"}  # of classifiers
EVERY = list(STRENGTH)


def fitted(kind, classes=2):
    """A model of this kind, and samples."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % classes
    if kind in (TextClassifier, TextRegressor):
        X = [f"{('bad', 'good', 'odd')[label]} film number {i % 7}" for i, label in enumerate(y)]
    elif kind in (BagClassifier, BagRegressor):
        X = rng.standard_normal((60, 4, 3))
        X[np.arange(60), 0, y] += 4
    else:
        X = rng.standard_normal((60, 3))
        X[:, 0] += 2 * y
    return kind(random_state=0).fit(X, y), X


@pytest.mark.parametrize("kind", EVERY)
class TestNames:
    def test_settings(self, kind):
        parameters = inspect.signature(kind.__init__).parameters
        assert set(parameters) >= SETTINGS | {STRENGTH[kind]}
        assert not OLD & set(parameters)
        assert parameters[STRENGTH[kind]].default == "auto"
        assert parameters["random_state"].default is None
        assert parameters["n_jobs"].default is None
        assert parameters["verbose"].default == 0
        assert type(parameters["verbose"].default) is int

    def test_methods(self, kind):
        wanted = METHODS | (REASONS if kind not in (AttentionRegressor, TextRegressor, BagRegressor) else set())
        assert wanted <= {name for name in dir(kind) if callable(getattr(kind, name))}
        if hasattr(kind, "transform"):
            assert {"get_feature_names_out", "set_output"} <= set(dir(kind))

    def test_a_fitted_model_says_what_was_chosen_and_comes_back(self, kind, tmp_path):
        model, X = fitted(kind)
        assert model.choice_ is not None
        model.save(tmp_path / "m")
        copy = load_estimator(tmp_path / "m")
        assert type(copy) is kind
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert str(copy.choice_) == str(model.choice_)

    def test_an_explanation_adds_up_and_fits_the_protocol(self, kind):
        if kind in (AttentionRegressor, TextRegressor, BagRegressor):
            return
        model, X = fitted(kind)
        for item in model.explain(X[:3]):
            assert item.decision == pytest.approx(item.bias + sum(reason.contribution for reason in item.reasons))
            assert item.label in model.classes_
            assert 0 <= item.probability <= 1
            assert item.counterfactual is None or len(item.counterfactual)
            assert item.as_json()["label"] == item.label


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [TextClassifier, BagClassifier, GroupClassifier])
class TestReasons:
    def test_a_contribution_is_positive_where_it_speaks_for_the_label(self, kind, classes):
        """`decision` is the score for the label, so what adds to it speaks for the label, whichever class that is."""
        model, X = fitted(kind, classes)
        scores = model.decision_function(X)
        for item, score in zip(model.explain(X), scores, strict=True):
            own = score[list(model.classes_).index(item.label)] if classes > 2 else abs(score)
            assert item.decision == pytest.approx(own)
            assert item.decision == pytest.approx(item.bias + sum(reason.contribution for reason in item.reasons))
        assert len({item.label for item in model.explain(X)}) == classes

    def test_counterfactuals_are_lists_that_are_empty_where_nothing_changes_the_label(self, kind, classes):
        if kind is BagClassifier and classes > 2:
            return  # exact for two classes only
        model, X = fitted(kind, classes)
        for parts, item in zip(model.counterfactuals(X), model.explain(X), strict=True):
            assert type(parts) is list
            assert len(parts) == len(item.counterfactual or [])
        assert model.intercept_.shape == (1 if classes == 2 else classes,)
