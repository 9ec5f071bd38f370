"""A number, or several labels, on the command line: learned, predicted, scored and explained, for texts and for bags."""

import json

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import ModelCard
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from whichtoken.app.evaluation import Scheme
from whichtoken.app.fitting import TextRoles, fit_text
from whichtoken.app.readers import Target
from whichtoken.errors import UsageError
from whichtoken.estimators import TextRegressor, load_estimator
from whichtoken.estimators.metrics import HeldOut, metrics_of

POINTS = {"good": 1, "bad": -1, "great": 2, "awful": -2}
WORDS = ["film", "plot", "cast", "song", "actor", "scene", "end", "long", *POINTS]


@pytest.fixture
def texts(tmp_path):
    """Texts whose words add up to a number and bring two labels."""
    rng = np.random.default_rng(0)
    rows = rng.choice(WORDS, (120, 6))
    stars = [3 + sum(POINTS.get(word, 0) for word in row) + rng.normal(0, 0.2) for row in rows]
    table = pd.DataFrame({"text": [" ".join(row) for row in rows], "stars": stars})
    for word in ("long", "song"):
        table[word] = [int(word in row) for row in rows]
    table.to_csv(tmp_path / "texts.csv", index=False)
    return table


def test_a_number_of_texts(texts, tmp_path, whichtoken):
    model, data = tmp_path / "model", tmp_path / "texts.csv"
    ran = whichtoken("fit", "text", data, "--number", "stars", "--model", model)
    assert ran.returncode == 0, ran.stderr
    assert "TF-IDF + ridge regression" in ran.stdout
    assert whichtoken("predict", model, data, "--to", tmp_path / "out.csv").returncode == 0
    said = pd.read_csv(tmp_path / "out.csv")["predicted"]
    np.testing.assert_allclose(said, load_estimator(model).predict(texts["text"]))
    ran = whichtoken("evaluate", model, data, "--json", tmp_path / "scores.json", "--html", tmp_path / "page.html")
    scores = json.loads((tmp_path / "scores.json").read_text())["ours"]
    assert scores["r2"] == pytest.approx(r2_score(texts["stars"], said))
    assert scores["intervals"]["r2"][0] < scores["r2"] < scores["intervals"]["r2"][1]
    assert "R2" in ran.stdout
    ran = whichtoken("explain", model, "--file", data, "--json", tmp_path / "why.json", "--html", tmp_path / "why.html")
    assert ran.returncode == 0, ran.stderr
    every = json.loads((tmp_path / "why.json").read_text())
    for one in every:
        assert one["prediction"] == pytest.approx(one["bias"] + sum(r["contribution"] for r in one["reasons"]))
    one = next(one for one in every if one["counterfactual"])
    left = " ".join(word for word in one["text"].split() if word not in one["counterfactual"])
    assert load_estimator(model).predict([left])[0] <= one["prediction"] - 1
    ran = whichtoken("explain", model, "a great song")
    assert "lowers it by 1 or more, and nothing smaller does" in ran.stdout
    card = ModelCard.load(model / "README.md")
    assert card.text.strip().startswith("# A regression on texts")
    assert [one.metric_type for one in card.data.eval_results] == ["r2", "rmse"]


@pytest.mark.filterwarnings("ignore:1 row has no text")
def test_several_labels_of_texts(texts, tmp_path, whichtoken):
    model, data = tmp_path / "model", tmp_path / "texts.csv"
    fit = [
        "fit",
        "text",
        data,
        "--label",
        "long,song",
        "--model",
        model,
        "--folds",
        "2",
        "--json",
        tmp_path / "fit.json",
    ]
    assert whichtoken(*fit).returncode == 0
    report = json.loads((tmp_path / "fit.json").read_text())
    assert [one["name"] for one in report["labels"]] == ["long", "song"]
    assert report["baseline"]["name"] == "TF-IDF + logistic regression for each label"
    assert report["ours"]["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in report["labels"]]))
    texts.assign(text=texts["text"].mask(texts.index == 1, "")).to_csv(tmp_path / "gap.csv", index=False)
    assert whichtoken("predict", model, tmp_path / "gap.csv", "--to", tmp_path / "out.csv").returncode == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.loc[1, ["predicted_long", "probability_song"]].isna().all()
    assert (found["predicted_long"].dropna() == (found["probability_long"].dropna() > 0.5)).all()
    assert whichtoken("evaluate", model, data, "--json", tmp_path / "scores.json").returncode == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    chances = load_estimator(model).predict_proba(texts["text"])
    for k, one in enumerate(scores["labels"]):
        assert one["log_loss"] == pytest.approx(log_loss(texts[one["name"]], chances[:, k]))
        assert one["auc"] == pytest.approx(roc_auc_score(texts[one["name"]], chances[:, k]))
    whichtoken("explain", model, "--file", tmp_path / "gap.csv", "--rows", 2, "--json", tmp_path / "why.json")
    first, second, *none = json.loads((tmp_path / "why.json").read_text())
    assert [first["of_label"], second["of_label"], *none] == ["long", "song", None, None]
    assert first["label"] in ("long", "not long")
    assert "with several labels" in (model / "README.md").read_text()


def test_bags_have_numbers_and_labels_too(tmp_path, whichtoken):
    rng = np.random.default_rng(0)
    instances = rng.normal(size=(40, 4, 2))
    table = pd.DataFrame(instances.reshape(-1, 2), columns=["x", "y"]).assign(bag=np.repeat(np.arange(40), 4))
    table["grade"] = np.repeat(10 * instances[:, :, 0].max(axis=1), 4)
    for name, k in (("hot", 0), ("cold", 1)):
        table[name] = np.repeat((instances[:, :, k].max(axis=1) > 1).astype(int), 4)
    table.to_csv(tmp_path / "bags.csv", index=False)
    for name, learned in (("number", ["--number", "grade"]), ("labels", ["--label", "hot,cold"])):
        fit = ["fit", "bags", tmp_path / "bags.csv", *learned, "--feature", "x", "--feature", "y"]
        ran = whichtoken(*fit, "--instance-map", "linear", "--model", tmp_path / name)
        assert ran.returncode == 0, ran.stderr
        for command in ("predict", "evaluate"):
            ran = whichtoken(command, tmp_path / name, tmp_path / "bags.csv")
            assert ran.returncode == 0, ran.stderr
        ran = whichtoken("explain", tmp_path / name, "--file", tmp_path / "bags.csv")
        assert {"number": "bag 0: ", "labels": "bag 0, hot: "}[name] in ran.stdout, ran.stderr
    table.loc[1, "grade"] += 1
    table.to_csv(tmp_path / "bags.csv", index=False)
    ran = whichtoken(*fit[:3], "--number", "grade", "--model", tmp_path / "new")
    assert "bag 0 has several numbers; a bag must have one" in ran.stderr


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        (("stars", "many"), Target(("stars",), number=True), "'many' in row 5; numbers to predict must be finite"),
        (("stars", ""), Target(("stars",), number=True), "'' in row 5; numbers to predict must be finite"),
        (("song", 2), Target(("long", "song")), "row 5 holds 2 in column 'song'; columns of several labels hold 0 and 1"),
        (("song", None), Target(("long", "song")), "column 'song' holds '' in row 5"),
        (None, Target(("one",), number=True), "'one' is 1 in every row; nothing can be learned"),
        (None, Target(("one", "song")), "'one' is 1 in every row; nothing can be learned"),
    ],
    ids=["text in numbers", "gap in numbers", "no mark", "gap in labels", "one number", "one mark"],
)  # fmt: skip
def test_a_wrong_cell_is_named_with_its_row(texts, tmp_path, change, target, said):
    table = texts.assign(one=1).astype(object)
    if change:
        table.loc[4, change[0]] = change[1]
    table.to_csv(tmp_path / "texts.csv", index=False)
    with pytest.raises(UsageError, match=said):
        fit_text(tmp_path / "texts.csv", tmp_path / "model", TextRoles(label=target), Scheme(baseline=None))
    assert not (tmp_path / "model").exists()


def test_what_is_for_classes_is_refused_in_a_sentence(texts, tmp_path, whichtoken):
    fit = ["fit", "text", tmp_path / "texts.csv", "--model", tmp_path / "model"]
    for option in (["--class-weight", "balanced"], ["--threshold", "1:5"], ["--memory", "4GB"], ["--min-class", "3"]):
        ran = whichtoken(*fit, "--number", "stars", *option)
        assert f"{option[0]} is for one class per row, not for a number; leave it out" in ran.stderr
    ran = whichtoken(*fit, "--number", "stars", "--label", "long")
    assert "--label and --number contradict each other" in ran.stderr
    assert whichtoken(*fit, "--number", "stars", "--no-baseline").returncode == 0
    ran = whichtoken("explain", tmp_path / "model", "--explainer", tmp_path / "page.html")
    assert "predicts a number; a page shows models with one class" in ran.stderr
    ran = whichtoken("predict", tmp_path / "model", tmp_path / "texts.csv", "--abstain-below", "0.8")
    assert "this model predicts a number" in ran.stderr


def test_intervals_of_labels_are_those_of_rows_not_of_cells():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (200, 1))
    answers = np.clip(truth + rng.normal(0, 0.5, truth.shape), 0.05, 0.95)
    ten = metrics_of("ten equal labels", HeldOut(np.repeat(truth, 10, axis=1), [np.repeat(answers, 10, axis=1)]), 0.0)
    one = metrics_of("one", HeldOut(truth, [answers]).of_label(0), 0.0)
    width, alone = (np.subtract(*m.intervals["log_loss"]) for m in (ten, one))
    assert ten.log_loss == pytest.approx(one.log_loss)
    assert width == pytest.approx(alone, rel=0.2)


def test_columns_help_to_predict_a_number(texts, tmp_path, whichtoken):
    data, model = tmp_path / "texts.csv", tmp_path / "model"
    ran = whichtoken("fit", "text", data, "--number", "stars", "--columns", "long", "--no-baseline", "--model", model)
    assert ran.returncode == 0, ran.stderr
    assert "R2" in ran.stdout


def test_labels_are_found_by_name_in_any_order(texts, tmp_path, whichtoken):
    data, model = tmp_path / "texts.csv", tmp_path / "model"
    assert whichtoken("fit", "text", data, "--label", "long,song", "--no-baseline", "--model", model).returncode == 0
    found = []
    for labels in ("long,song", "song,long"):
        to = tmp_path / "scores.json"
        assert whichtoken("evaluate", model, data, "--label", labels, "--json", to).returncode == 0
        found.append(json.loads(to.read_text()))
    assert found[0] == found[1]


@pytest.mark.parametrize("value", [0.1, 3.0])
def test_equal_numbers_have_no_r2_but_one_or_zero(value):
    truth = np.full(30, value)
    for answers in (truth, truth + np.linspace(1, 2, 30)):
        scores = metrics_of("x", HeldOut(truth, [answers[:, None]]), 0.0)
        assert scores.r2 == (truth == answers).all()  # as scikit-learn has it, but for rounding
        assert np.isfinite(scores.intervals["r2"]).all()


def test_numbers_whose_squares_are_not_finite_are_refused(texts):
    with pytest.raises(ValueError, match=r"y holds a number of size .*e\+160"):
        TextRegressor().fit(texts["text"], texts["stars"] * 1e160)
