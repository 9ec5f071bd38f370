"""Pictures in scikit-learn's manner: right numbers, axes in words, and names from data that no formula reader chokes on."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from whichtoken import BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app import (
    AttentionDisplay,
    ImportanceDisplay,
    LearningCurvePlanDisplay,
    MarginDisplay,
    ProbabilityDisplay,
    TrajectoryDisplay,
)
from whichtoken.margin import key_query_svm, prompt_svm

HOSTILE = "$x_1^{$\u202e" + "long" * 30
STEPS = [1, 10, 100]


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def texts() -> Any:
    words = [["good", HOSTILE], ["bad", HOSTILE]] * 10
    model = TextClassifier(analyzer=str.split, C=10.0, min_df=1, random_state=0)
    return model.fit([" ".join(pair) for pair in words], ["+", "-"] * 10)


def tokens() -> Any:
    return np.random.default_rng(0).standard_normal((5, 3, 20))


def descent(directions: Any) -> Any:
    states = tuple(SimpleNamespace(step=s, direction=np.array(d)) for s, d in zip(STEPS, directions, strict=True))
    return SimpleNamespace(snapshots=states, final=states[-1])


def drawing(name: str, texts: Any) -> Any:
    """A function of the axes for each kind of display."""
    limit = prompt_svm(tokens(), [0] * 5)
    shares = np.array([[0.2, 0.8], [0.7, 0.3], [0.4, 0.6]] * 20)
    return {
        "importance": lambda ax: ImportanceDisplay.from_estimator(texts, ax=ax),
        "attention": lambda ax: AttentionDisplay.from_estimator(texts, [f"good {HOSTILE}"], ax=ax),
        "probability": lambda ax: ProbabilityDisplay.from_predictions([1, 0, 1] * 20, shares, ax=ax),
        "margin": lambda ax: MarginDisplay.from_certificate(limit, tokens(), [0] * 5, ax=ax),
        "trajectory": lambda ax: TrajectoryDisplay.from_result(descent([[1, 0], [1, 1], [1, 2]]), ax=ax),
        "plan": lambda ax: LearningCurvePlanDisplay(
            {"attention": [(10, 0.3), (20, 0.2)]}, samples=10, target=0.1, floor=0.05, measured=(8, 0.3, 0.2, 0.4)
        ).plot(ax),
    }[name]


@pytest.mark.parametrize("name", ["importance", "attention", "probability", "margin", "trajectory", "plan"])
def test_draws_where_it_is_told_to_and_can_be_saved(name: str, texts: Any, tmp_path: Any) -> None:
    draw = drawing(name, texts)
    axes = Figure().subplots()
    given = draw(axes)
    assert given.ax_ is axes
    assert given.figure_ is axes.figure
    assert given.ax_.get_xlabel()
    assert given.ax_.get_ylabel()
    fresh = draw(None)
    assert fresh.figure_ is not given.figure_
    assert fresh.plot(axes) is fresh
    fresh.figure_.savefig(tmp_path / "picture.png")


def test_importance_turns_to_the_label_that_is_asked_for(texts: Any) -> None:
    for label, sign in (("+", 1), ("-", -1)):
        shown = ImportanceDisplay.from_estimator(texts, label=label, ax=Figure().subplots())
        strengths = dict(zip(shown.names, shown.strengths, strict=True))
        assert sign * strengths["good"] > 0 > sign * strengths["bad"]
    with pytest.raises(ValueError, match="label='no' is not one of the classes '\\+', '-'"):
        ImportanceDisplay.from_estimator(texts, label="no")


def test_importance_of_groups_is_their_attention() -> None:
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 3)), columns=[HOSTILE, "b", "c"])
    model = GroupClassifier(C=1.0, n_groups=2, cv=2, random_state=0).fit(X, X["b"] > 0)
    shown = ImportanceDisplay.from_estimator(model, ax=Figure().subplots())
    assert shown.names[0] == "b"
    assert shown.strengths.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="leave label out"):
        ImportanceDisplay.from_estimator(model, label=True)


def test_what_has_no_importance_says_so() -> None:
    X, y = np.random.default_rng(0).standard_normal((24, 3, 2)), np.arange(24) % 2
    model = BagClassifier(C=1.0, inverse_temperature=1.0, refine_steps=0, cv=2).fit(X, y)
    with pytest.raises(ValueError, match="BagClassifier has no importance to show"):
        ImportanceDisplay.from_estimator(model)
    attention = AttentionDisplay.from_estimator(model, X, ax=Figure().subplots())
    assert attention.attention.sum() == pytest.approx(1)
    assert attention.noun == "instance"


def test_probabilities_must_fit_the_labels() -> None:
    with pytest.raises(ValueError, match=r"probabilities of shape \(2, 3\) must have shape \(2, 2\)"):
        ProbabilityDisplay.from_predictions([0, 1], np.ones((2, 3)))


def test_leads_are_at_least_the_margin_and_the_support_has_no_more() -> None:
    data, queries = tokens(), np.random.default_rng(1).standard_normal((5, 20))
    limit = key_query_svm(data, queries, [1] * 5)
    shown = MarginDisplay.from_certificate(limit, data, [1] * 5, queries=queries, ax=Figure().subplots())
    assert shown.leads.min() == pytest.approx(limit.margin, rel=1e-6)
    np.testing.assert_allclose(shown.leads[shown.held], limit.margin, rtol=1e-5)
    with pytest.raises(ValueError, match="give queries with a certificate of key_query_svm"):
        MarginDisplay.from_certificate(limit, data, [1] * 5)


def test_distances_are_those_to_the_limit_or_to_the_end() -> None:
    run = descent([[1, 0], [1, 1], [0, 3]])
    to_limit = TrajectoryDisplay.from_result(run, limit=[0, 1], ax=Figure().subplots())
    np.testing.assert_allclose(to_limit.values, [1, 1 - np.sqrt(0.5), 0])
    to_end = TrajectoryDisplay.from_result(run, ax=Figure().subplots())
    np.testing.assert_allclose(to_end.values, to_limit.values[:-1])
    assert to_end.steps.tolist() == STEPS[:-1]
    with pytest.raises(ValueError, match="pass record="):
        TrajectoryDisplay.from_result(SimpleNamespace(snapshots=(), final=run.final))


def test_matplotlib_loads_when_something_is_drawn() -> None:
    code = (
        "import sys, whichtoken.app as r; r.MarginDisplay, r.TrajectoryDisplay; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
