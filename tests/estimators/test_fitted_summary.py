"""Estimators show what they found below scikit-learn's diagram, and nothing before a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import config_context

from whichtoken import AttentionRegressor, BagClassifier, GroupClassifier, TextClassifier

X = np.random.default_rng(0).standard_normal((40, 2))
LABELS = np.array(["<b>no</b>", "yes"])[np.arange(40) % 2]
BAGS = np.random.default_rng(0).standard_normal((40, 3, 2))
TEXTS = ["good <script> film", "bad film"] * 20
FITS: list[tuple[Any, Any, Any, list[str]]] = [
    (TextClassifier(C=1.0, random_state=0), TEXTS, LABELS, ["strongest tokens", "good", "&lt;b&gt;no&lt;/b&gt;, yes"]),
    (BagClassifier(C=1.0, inverse_temperature=1.0, refine_steps=0, cv=2), BAGS, LABELS, ["pooling", "BagChoice"]),
    (GroupClassifier(C=1.0, n_groups=1, cv=2, random_state=0), X, LABELS, ["selected groups", "GroupChoice"]),
    (AttentionRegressor(max_iter=3, random_state=0), X, X[:, 0], ["steps", "RegressionChoice"]),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("model", "data", "labels", "told"), FITS, ids=lambda value: type(value).__name__)
def test_a_fit_is_told_below_the_diagram(model: Any, data: Any, labels: Any, told: list[str]) -> None:
    assert "whichtoken-result" not in model._repr_html_()
    model.fit(data, labels)
    diagram, _, below = model._repr_html_().partition('<div class="whichtoken-result">')
    assert "sk-top-container" in diagram
    assert f"Fitted {type(model).__name__}" in below
    for words in told:
        assert words in below
    assert "<script" not in below
    assert "<b>no" not in below
    # scikit-learn numbers its diagrams
    assert model._repr_mimebundle_()["text/html"].partition('<div class="whichtoken-result">')[2] == below
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert list(model._repr_mimebundle_()) == ["text/plain"]
