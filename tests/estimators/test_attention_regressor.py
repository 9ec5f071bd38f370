import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import whichtoken
from whichtoken import AttentionRegressor
from whichtoken.datasets import AttentionRegression
from whichtoken.estimators import load_estimator


@pytest.mark.filterwarnings(
    "ignore::whichtoken.theory.attention_regression.whitening.ShrinkageWarning"
)  # checks use tiny samples
@parametrize_with_checks([AttentionRegressor()])
def test_follows_scikit_learn(estimator, check):
    check(estimator)


def regression(outputs, seed=0):
    rng = np.random.default_rng(seed)
    problem = AttentionRegression(5, outputs, tokens=1000, covariance=20.0, target=3.0, mean=2.0).sample(rng)
    tokens, clean = problem.draw(300, rng)
    return problem.tokens, problem.labels, tokens, clean


def test_comes_close_to_least_squares_as_logits_shrink():
    X, y, tokens, clean = regression(3)
    least_squares = LinearRegression().fit(X, y)
    model = AttentionRegressor(logit_norm=1e-3).fit(X, y)
    np.testing.assert_allclose(model.coef_, least_squares.coef_, atol=2e-4)
    np.testing.assert_allclose(model.intercept_, least_squares.intercept_, atol=1e-3)
    np.testing.assert_allclose(model.predict(tokens), least_squares.predict(tokens), atol=2e-3)
    assert model.score(tokens, clean) > 0.99


def test_one_output_has_the_shapes_of_scikit_learn():
    X, y, tokens, _ = regression(1)
    model = AttentionRegressor().fit(X, y[:, 0])
    assert (model.coef_.shape, np.shape(model.intercept_), model.predict(tokens).shape) == ((5,), (), (300,))
    np.testing.assert_allclose(AttentionRegressor().fit(X, y).predict(tokens)[:, 0], model.predict(tokens))


def test_predicts_from_another_context():
    X, y, tokens, clean = regression(2)
    model = AttentionRegressor().fit(X, y)
    np.testing.assert_array_equal(model.predict(tokens, context=X), model.predict(tokens))
    half = model.predict(tokens, context=X[:500])
    assert 1 - np.sum((half - clean) ** 2) / np.sum((clean - clean.mean(axis=0)) ** 2) > 0.9
    with pytest.raises(ValueError, match=r"context of shape \(1000, 4\) must have shape"):
        model.predict(tokens, context=X[:, :4])


@pytest.mark.parametrize("center", [True, False])
def test_a_context_of_another_covariance_is_told(center):
    X, y, tokens, clean = regression(2)
    model = AttentionRegressor(center=center).fit(X, y)
    rng = np.random.default_rng(1)
    for size in (40, 200, 1000):  # the same law, also in short contexts: no warning, which would be an error here
        model.predict(tokens, context=X[rng.choice(1000, size)])
    spread = np.var(clean, axis=0).sum()
    for other in (X * 3.0, X * [1, 1, 1, 1, 5.0], X @ np.linalg.qr(rng.standard_normal((5, 5)))[0]):
        with pytest.warns(
            UserWarning, match="context has another .*covariance than the training tokens.*leave context out"
        ):
            found = model.predict(tokens, context=other)
        assert np.mean(np.sum((found - model.predict(tokens)) ** 2, axis=1)) > 0.01 * spread
    shifted = X + 3.0
    if center:  # its mean is subtracted
        np.testing.assert_allclose(model.predict(tokens, context=shifted), model.predict(tokens), atol=1e-9)
    else:
        with pytest.warns(UserWarning, match="another mean or covariance"):
            model.predict(tokens, context=shifted)


def test_divergence_is_a_warning_and_leaves_the_best_iterate():
    X, y, _, _ = regression(2)
    model = AttentionRegressor(step=50.0, backtrack=False, alpha=0.0, start_samples=10)
    with pytest.warns(ConvergenceWarning, match="training diverged: loss .* the iterate of least loss is returned"):
        model.fit(X, y)
    assert model.fit_.descent.final.loss == min(iterate.loss for iterate in model.fit_.descent.trace)


def test_random_start_is_reproducible():
    X, y, tokens, _ = regression(2)
    models = [AttentionRegressor(start="random", random_state=seed, max_iter=2).fit(X, y) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(models[0].predict(tokens), models[1].predict(tokens))
    assert not np.allclose(models[0].predict(tokens), models[2].predict(tokens))


@pytest.mark.parametrize("generator", [np.random.default_rng, np.random.RandomState])
def test_a_generator_of_the_random_start_goes_on_from_fit_to_fit(generator):
    X, y, _, _ = regression(2)
    model = AttentionRegressor(start="random", random_state=generator(1), max_iter=1)
    starts = [model.fit(X, y).fit_.descent.trace[0].P for _ in range(2)]
    assert not np.allclose(*starts)
    again = AttentionRegressor(start="random", random_state=generator(1), max_iter=1).fit(X, y)
    np.testing.assert_array_equal(again.fit_.descent.trace[0].P, starts[0])


def test_units_of_the_features_do_not_matter():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = X.sum(axis=1)
    scores = [AttentionRegressor().fit(X * units, y).score(X * units, y) for units in ([1.0, 1.0], [1.0, 1e8])]
    assert min(scores) > 0.999


def test_works_in_pipelines_and_searches():
    X, y, tokens, clean = regression(2)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), AttentionRegressor()), {"attentionregressor__logit_norm": [0.1, 0.6]}, cv=3
    ).fit(X, y)
    assert search.best_params_ == {"attentionregressor__logit_norm": 0.1}
    assert search.score(tokens, clean) > 0.98


def test_is_offered_by_the_package_without_being_imported_by_it():
    assert "AttentionRegressor" in dir(whichtoken)
    with pytest.raises(AttributeError, match="Regressor"):
        whichtoken.Regressor  # noqa: B018


@pytest.mark.parametrize("outputs", [1, 2])
def test_comes_back_from_a_model_folder(outputs, tmp_path):
    X, y, tokens, _ = regression(outputs)
    model = AttentionRegressor(cv=2).fit(X[:200], y[:200, 0] if outputs == 1 else y[:200])
    model.save(tmp_path / "m")
    for copy in (AttentionRegressor.load(tmp_path / "m"), load_estimator(tmp_path / "m")):
        np.testing.assert_array_equal(copy.predict(tokens), model.predict(tokens))
        np.testing.assert_array_equal(copy.predict(tokens, X[:50]), model.predict(tokens, X[:50]))
        np.testing.assert_allclose(copy.coef_, model.coef_, rtol=1e-12)
        assert copy.get_params() == model.get_params()
        assert (copy.choice_, copy.n_iter_) == (model.choice_, model.n_iter_)


def test_a_fit_without_any_error_comes_back(tmp_path):
    X, *_ = regression(1)
    model = AttentionRegressor(cv=2).fit(X[:50], np.ones(50))
    assert set(model.choice_.losses.values()) == {0.0}
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(AttentionRegressor.load(tmp_path / "m").predict(X), np.ones(len(X)))


def test_validation_takes_the_length_of_the_logits_with_the_least_error():
    X, y, _, _ = regression(2)
    model = AttentionRegressor(cv=3, random_state=0).fit(X[:300], y[:300])
    assert list(model.choice_.losses) == [0.03, 0.1, 0.3]
    best = min(model.choice_.losses, key=model.choice_.losses.get)
    assert model.choice_.logit_norm == pytest.approx(best)
    rule = AttentionRegressor().fit(X[:300], y[:300])
    assert (rule.choice_.losses, rule.choice_.logit_norm) == ({}, pytest.approx(0.3))


def test_steps_are_said_where_that_is_wanted(capsys):
    X, y, _, _ = regression(1)
    model = AttentionRegressor(verbose=1, max_iter=3).fit(X[:200], y[:200])
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"step {model.n_iter_}: loss {model.fit_.descent.trace[-1].loss:.6g}"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": "adaptive"}, "alpha='adaptive' must be 'auto' or a number that is not negative"),
        ({"alpha": -1.0}, "alpha=-1.0 must be 'auto'"),
        ({"alpha": None}, "alpha=None must be 'auto'"),
        ({"cv": 1}, "cv=1 must be a whole number of at least 2"),
        ({"max_iter": 2.5}, r"max_iter=2\.5 must be a whole number of at least 0"),
    ],
)
def test_settings_that_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        AttentionRegressor(**options).fit(np.eye(3), np.ones(3))
