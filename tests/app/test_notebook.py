"""What notebooks show: the explainer as a widget, figures and tables of results."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from whichtoken import AttentionRegressor, BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app import GroupCurveDisplay, GroupPathDisplay, explainer_widget
from whichtoken.errors import UsageError
from whichtoken.estimators.text.explainer import check_exportable

TOYS = Path(__file__).parents[1] / "toys"
PAGE = """<!doctype html><html lang="en"><head><title>cell</title></head><body><main><h1>A cell</h1><div id="cell"></div></main>
<script type="application/json" id="data">%s</script><script type="module">
const { esm, css, packed } = JSON.parse(document.getElementById("data").textContent);
document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
const widget = await import(`data:text/javascript,${encodeURIComponent(esm)}`);
widget.default.render({ model: { get: (name) => ({ packed })[name] }, el: document.getElementById("cell") });
</script></body></html>"""


def models():
    rng = np.random.default_rng(0)
    texts, X = ["a good film", "a bad film"] * 10, rng.standard_normal((60, 4))
    bags = [bag + 4 * (k % 2) for k, bag in enumerate(rng.standard_normal((40, 5, 2)))]
    return {
        "praise": (TextClassifier(random_state=0).fit(texts, ["praise", "blame"] * 10), texts[:1]),
        "many": (
            GroupClassifier(list("aabb"), group_map="linear", n_groups=1, random_state=0).fit(
                X, np.where(X[:, 0] > 0, "many", "few")
            ),
            X[X[:, 0].argmax()][None],
        ),
        "here": (
            BagClassifier(n_queries=1, instance_map="linear", refine_steps=2, random_state=0).fit(
                bags, ["away", "here"] * 20
            ),
            bags[1:2],
        ),
    }


@pytest.mark.browser
def test_widgets_show_what_python_says(visit, tmp_path):
    pytest.importorskip("anywidget")
    for label, (model, example) in models().items():
        widget = explainer_widget(model, example)
        data = {"esm": widget._esm, "css": widget._css, "packed": widget.packed}
        (tmp_path / f"{label}.html").write_text(PAGE % json.dumps(data).replace("<", "\\u003c"))
        made = visit(tmp_path / f"{label}.html")
        made.page.wait_for_selector(".lead b")
        [why] = model.explain(example)
        assert made.page.inner_text(".lead") == f"{label} with probability {why.probability:.3f}"
        assert made.violations() == []


def test_widgets_refuse_what_pages_refuse():
    pytest.importorskip("anywidget")
    with pytest.raises(UsageError, match="texts, bags or groups, not AttentionRegressor"):
        explainer_widget(AttentionRegressor())
    with pytest.raises(UsageError, match="fitted on counts"):
        explainer_widget(TextClassifier().fit(np.eye(4), [0, 1, 0, 1]))


def test_a_page_and_a_widget_refuse_columns_and_several_labels(tmp_path):
    texts, labels = ["good film", "bad film"] * 10, [1, 0] * 10
    table = pd.DataFrame({"text": texts, "stars": np.arange(20.0)})
    several = TextClassifier(random_state=0).fit(texts, np.array([labels, labels[::-1]]).T)
    for model, said in [
        (TextClassifier(columns=["stars"], random_state=0).fit(table, labels), "this model has columns: stars"),
        (several, "this model has 2: ask for_label"),
    ]:
        with pytest.raises(UsageError, match=said):
            model.save_explainer(tmp_path / "page.html")
        with pytest.raises(UsageError, match=said):
            check_exportable(model)  # as widgets and the workbench do
    assert not (tmp_path / "page.html").exists()


def test_displays_have_frames():
    X = np.random.default_rng(0).standard_normal((200, 2))
    model = GroupClassifier(group_map="linear", random_state=0).fit(X, X[:, 0] > 0)
    path = GroupPathDisplay(model.path_).frame()
    assert path["log_loss"].tolist() == list(model.path_.losses)
    curve = GroupCurveDisplay({"a": ([0.0, 1.0], [2.0, 3.0])}, "group").frame()
    assert curve.to_numpy().tolist() == [["a", 0.0, 2.0], ["a", 1.0, 3.0]]


def test_results_draw_their_figure_and_rows_are_a_table(no_workers, monkeypatch, tmp_path):
    from whichtoken.lab import reproduce

    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
    [result] = reproduce(["toy/mean"], out=tmp_path)
    table = result.rows.to_frame()
    assert len(table) == len(result.rows)
    assert table["seed"].tolist() == [row.seed for row in result.rows]
    name = next(iter(result.rows[0].measured))
    assert table[name].tolist() == result.rows.values(name).tolist()
    assert result.plot().axes
