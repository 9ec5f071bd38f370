"""Reasons of bags: numbers that add up, deletions that hold, and a page that shows them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from whichtoken import BagClassifier
from whichtoken.app.pages.explanations import as_html, color_words, reason_lines


def bags(classes: int = 2, n: int = 90):
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    X = [rng.standard_normal((rng.integers(3, 15), 4)) for _ in y]
    for bag, label in zip(X, y, strict=True):
        bag[0, label] += 6
    return X, np.array(["no", "yes", "maybe"])[y]


@pytest.fixture(scope="module")
def data():
    return bags()


@pytest.fixture(scope="module")
def model(data):
    return BagClassifier(random_state=0, inverse_temperature=2.0, refine_steps=0).fit(*data)


@pytest.mark.parametrize(("classes", "queries"), [(2, 1), (2, 2), (3, 1), (3, 2)])
def test_numbers_are_those_of_the_model_and_add_up(classes, queries):
    X, y = bags(classes)
    model = BagClassifier(random_state=0, n_queries=queries, inverse_temperature=2.0, refine_steps=0).fit(X, y)
    found = model.explain(X)
    assert [item.label for item in found] == model.predict(X).tolist()
    decisions = model.decision_function(X)
    wanted = np.abs(decisions) if classes == 2 else decisions.max(axis=1)  # the score for the label
    np.testing.assert_allclose([item.decision for item in found], wanted, rtol=1e-12)
    np.testing.assert_allclose([item.probability for item in found], model.predict_proba(X).max(axis=1), rtol=1e-12)
    for item, bag in zip(found, X, strict=True):
        added = [reason.contribution for reason in item.reasons]
        assert sum(added) == pytest.approx(item.decision, rel=1e-9)
        assert sum(reason.attention for reason in item.reasons) == pytest.approx(1)
        assert np.mean([reason.over_uniform for reason in item.reasons]) == pytest.approx(1)
        assert sorted(reason.instance for reason in item.reasons) == list(range(1, len(bag) + 1))
        assert np.all(np.diff(np.abs(added)) <= 0)
        assert item.certified == (classes == 2 and queries == 1)
        # none is searched for
        assert ("searched for with two classes only" in item.view().summary()) == (classes == 3)


def test_deleting_the_named_instances_changes_the_label(model, data):
    X = data[0]
    flipped = 0
    for bag, item in zip(X, model.explain(X), strict=True):
        if item.counterfactual:
            flipped += 1
            rest = np.delete(bag, [k - 1 for k in item.counterfactual], axis=0)
            assert model.predict([rest])[0] == item.flips_to != item.label
            assert item.robust_to == len(item.counterfactual) - 1
    assert flipped > 30


def test_lines_sum_to_the_decision(model, data):
    for item in model.explain(data[0]):
        lines = reason_lines(item.view())
        assert sum(float(line[-1]) for line in lines) == pytest.approx(item.decision, abs=0.0005 * (len(lines) + 1))


def test_sentences(model, data):
    found = model.explain(data[0], names=[f"<{i}>" for i in range(90)])
    single = next(item for item in found if item.counterfactual and len(item.counterfactual) == 1)
    said = single.view().summary()
    assert said.startswith(f"bag {single.bag}: {single.label} (probability ")
    assert said.endswith(
        f"deleting instance '{single.counterfactual[0]}' changes the label to '{single.flips_to}', and nothing smaller changes it"
    )
    stuck = next(item for item in found if item.counterfactual is None)
    assert stuck.view().summary().endswith("no deletion of instances changes the label")
    assert color_words(single.view()).plain.split() == [str(k + 1) for k in range(len(single.reasons))]
    page = as_html(found)
    assert page.count("<article") == 90
    assert page.count("data-note=") == sum(map(len, data[0]))
    assert "bag &lt;3&gt;</a>:" in page
    assert "bag <3>" not in page


def test_json_is_plain(model, data):
    records = [item.as_json() for item in model.explain(data[0][:3], names=np.array([7, 8, 9]))]
    assert json.loads(json.dumps(records)) == records
    assert records[0]["bag"] == 7
    assert records[0]["label"] in ("no", "yes")
    with pytest.raises(ValueError, match="names has 2 entries for 3 bags"):
        model.explain(data[0][:3], names=[7, 8])


def test_the_command_explains_the_bags_of_a_table(whichtoken, model, data, tmp_path):
    rows = [(f"b{i}", *x) for i, bag in enumerate(data[0][:2]) for x in bag]
    pd.DataFrame(rows, columns=["molecule", "a", "b", "c", "d"]).to_csv(tmp_path / "t.csv", index=False)
    model.save(tmp_path / "m")
    shown = whichtoken("explain", "m", "--file", "t.csv", "--bag", "molecule")
    assert shown.returncode == 0, shown.stderr
    assert f"bag b0: {model.predict(data[0][:1])[0]} (probability" in shown.stdout
    written = whichtoken("explain", "m", "--file", "t.csv", "--bag", "molecule", "--json", "e.json", "--html", "e.html")
    assert written.returncode == 0, written.stderr
    records = json.loads((tmp_path / "e.json").read_text())
    np.testing.assert_allclose(
        [r["decision"] for r in records], np.abs(model.decision_function(data[0][:2])), rtol=1e-9
    )
    assert (tmp_path / "e.html").read_text().count("<article") == 2
    refused = whichtoken("explain", "m", "a text")
    assert refused.returncode == 2
    assert "give --file FILE and no TEXT" in refused.stderr
