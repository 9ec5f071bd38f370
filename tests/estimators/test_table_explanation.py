"""Reasons of rows add up, name what they are about, and their smallest changes are the smallest."""

from __future__ import annotations

import json
import sys
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from whichtoken import GroupClassifier
from whichtoken.app.cli import main as cli
from whichtoken.app.cli.explain import explain_data
from whichtoken.app.pages.explanations import as_html, color_words, reason_lines
from whichtoken.errors import UsageError

COLUMNS = ["a_1", "a_2", "b_1", "b_2", "c_1", "age"]
GROUPS = {"a": ["a_1", "a_2"], "b": ["a_2", "b_1", "b_2"], "c": ["c_1"]}  # a_2 counts for the first that is selected


@pytest.fixture(scope="module", params=[2, 3], ids=["two classes", "three classes"])
def fitted(request):
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((150, 6)) + 5, columns=COLUMNS)
    score = X["a_1"] - 0.7 * X["b_2"] + 0.5 * X["c_1"] + 0.5 * X["age"] - 1.3 * 5
    y = np.digitize(score, [0.0] if request.param == 2 else [-0.7, 0.7])
    return GroupClassifier(GROUPS, covariates=["age"], n_groups=3, C=1.0, random_state=0).fit(X, y), X


def test_contributions_add_up_to_the_decision(fitted):
    model, X = fitted
    scores = model.decision_function(X)
    for item, score in zip(model.explain(X), scores, strict=True):
        assert item.decision == (abs(score) if score.ndim == 0 else score.max())  # the score for the label
        assert item.bias + sum(reason.contribution for reason in item.reasons) == pytest.approx(item.decision)
        for reason in item.reasons:
            assert sum(column.contribution for column in reason.columns) == pytest.approx(
                reason.contribution, abs=1e-12
            )
        sizes = [abs(reason.contribution) for reason in item.reasons]
        assert sizes == sorted(sizes, reverse=True)


def test_labels_and_probabilities_are_those_of_the_model(fitted):
    model, X = fitted
    explained = model.explain(X)
    assert [item.label for item in explained] == model.predict(X).tolist()
    np.testing.assert_allclose([item.probability for item in explained], model.predict_proba(X).max(axis=1))
    assert {column.column for reason in explained[0].reasons for column in reason.columns} == set(COLUMNS)
    assert {reason.group for reason in explained[0].reasons} == {"a", "b", "c", "covariates"}


def test_the_average_row_has_the_bias_alone(fitted):
    model, X = fitted
    [item] = model.explain(X.mean().to_frame().T)
    assert item.decision == pytest.approx(item.bias)
    np.testing.assert_allclose([reason.contribution for reason in item.reasons], 0, atol=1e-12)
    assert item.counterfactual is None


def test_no_smaller_set_of_groups_changes_the_label(fitted):
    model, X = fitted
    rows = X.iloc[:40]
    average = X.mean()

    def changed(row, item, names):
        other = row.copy()
        for reason in item.reasons:
            if reason.group in names:
                for column in reason.columns:
                    other[column.column] = average[column.column]
        label = model.predict(other.to_frame().T)[0]
        return None if label == item.label else label

    some = 0
    for (_, row), item in zip(rows.iterrows(), model.explain(rows), strict=True):
        names = [reason.group for reason in item.reasons]
        flips = item.counterfactual
        size = len(names) + 1 if flips is None else len(flips)
        assert flips is None or changed(row, item, flips) == item.flips_to
        assert not any(changed(row, item, part) is not None for k in range(size) for part in combinations(names, k))
        some += flips is not None
    assert some > 10


def test_a_saved_model_gives_the_same_reasons(fitted, tmp_path):
    model, X = fitted
    model.save(tmp_path / "m")
    copy = GroupClassifier.load(tmp_path / "m")
    ours, theirs = ([item.as_json() for item in m.explain(X[:5])] for m in (model, copy))
    assert ours == theirs


def test_rows_are_explained_from_tables_alone(fitted, tmp_path):
    model, X = fitted
    model.save(tmp_path / "m")
    X[:3].to_csv(tmp_path / "t.csv", index=False)
    found = explain_data(tmp_path / "m", None, tmp_path / "t.csv")
    assert [repr(item) for item in found] == [repr(item) for item in model.explain(X[:3])]
    with pytest.raises(
        UsageError, match="holds a group-classifier, which explains the rows of a table; give --file FILE"
    ):
        explain_data(tmp_path / "m", "a text", None)
    GroupClassifier(n_groups=1, C=1.0, random_state=0).fit(X.to_numpy(), X["a_1"] > 5).save(tmp_path / "nameless")
    with pytest.raises(UsageError, match="trained without column names"):
        explain_data(tmp_path / "nameless", None, tmp_path / "t.csv")


def test_the_command(fitted, tmp_path, monkeypatch, capsys):
    model, X = fitted
    model.save(tmp_path / "m")
    X[:3].to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.chdir(tmp_path)

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["whichtoken", "explain", "m", "--file", "t.csv", *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        return capsys.readouterr().out

    explained = model.explain(X[:3])
    shown = run()
    assert [shown.count(item.view().summary()) for item in explained] == [1, 1, 1]
    assert "average row" in run("--rows", "1")
    said = run("--json", "e.json", "--html", "e.html")
    assert said.splitlines() == ["wrote 3 explanations to e.html", "wrote 3 explanations to e.json"]
    assert json.loads((tmp_path / "e.json").read_text()) == [item.as_json() for item in explained]
    assert (tmp_path / "e.html").read_text() == as_html(explained)


def test_what_is_shown(fitted):
    model, X = fitted
    item = model.explain(X[:1])[0]
    view = item.view()
    assert view.summary().startswith(
        f"row 1: {item.label} (probability {item.probability:.3f}; runner-up {item.runner_up}, "
    )
    assert color_words(view).plain.count("  ") == 6
    *groups, average = reason_lines(view)
    assert [line[0] for line in groups] == [reason.group for reason in item.reasons]
    assert average == ("average row", "", f"{item.bias:+.3f}")
    page = as_html([item])
    assert page.count("data-note=") == 6
    assert f">{item.reasons[0].contribution:+.3f}</td>" in page


def test_a_change_shows_the_averages_that_it_puts_in(fitted):
    model, X = fitted
    item = next(item for item in model.explain(X) if item.counterfactual)
    page = as_html([item])
    changed = [c for reason in item.reasons if reason.group in item.counterfactual for c in reason.columns]
    for column in changed:
        assert f"<del>{column.column} {column.value:.4g}</del> <ins>{column.average:.4g}</ins>" in page
    assert page.count("<ins>") == len(changed)


def test_names_are_escaped_on_the_page():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((40, 2)), columns=["<b>", "c"])
    page = as_html(GroupClassifier(C=1.0, n_groups=2, random_state=0).fit(X, X["<b>"] > 0).explain(X[:1]))
    assert "&lt;b&gt;" in page
    assert page.count("<b>") == page.count("the label to <b>")
