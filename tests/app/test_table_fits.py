"""Files become saved models; what is wrong with a file is a sentence, and nothing is written then."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from whichtoken.app.cli.models import apply_model
from whichtoken.app.evaluation import Scheme, add_predictions
from whichtoken.app.fitting import GroupRoles, fit_bags, fit_groups, read_mapping
from whichtoken.app.readers import read_bags
from whichtoken.errors import UsageError
from whichtoken.estimators.groups.classifier import GroupClassifier


def bag_frame(bags: int = 80, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(bags):
        X = rng.standard_normal((rng.integers(3, 9), 3))
        X[0, 0] += 6 * (i % 2)
        rows += [(f"b{i}", "yes" if i % 2 else "no", *x) for x in X]
    return pd.DataFrame(rows, columns=["bag", "label", "u", "v", "w"])


def group_frame(rows: int = 200) -> pd.DataFrame:
    table = pd.DataFrame(
        np.random.default_rng(0).standard_normal((rows, 6)), columns=["a_1", "a_2", "b_1", "b_2", "c_1", "age"]
    )
    table["label"] = (table["b_1"] + table["b_2"] + table["age"] > 0).astype(int)
    return table


def write(table: pd.DataFrame, path: Path) -> Path:
    {
        ".csv": lambda: table.to_csv(path, index=False),
        ".tsv": lambda: table.to_csv(path, index=False, sep="\t"),
        ".parquet": lambda: table.to_parquet(path, index=False),
        ".jsonl": lambda: table.to_json(path, orient="records", lines=True, double_precision=15),
    }[path.suffix]()
    return path


def predictions(folder: Path, path: Path) -> pd.DataFrame:
    found = apply_model(folder, path)
    return add_predictions(found.table, found.classes, found.probabilities())


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_bags_of_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    table = bag_frame()
    shuffled = table.sample(frac=1, random_state=0)  # rows of a bag need not be neighbors
    found = read_bags(write(shuffled, tmp_path / f"t{kind}"))
    assert found.features == ("u", "v", "w")
    for i, name in enumerate(found.ids):
        wanted = shuffled[shuffled["bag"] == name]
        np.testing.assert_allclose(found.bags[i], wanted[["u", "v", "w"]], rtol=1e-9)
        assert found.labels[i] == wanted["label"].iloc[0]


def test_bags_are_fitted_saved_and_predicted(tmp_path: Path) -> None:
    path = write(bag_frame(), tmp_path / "t.csv")
    report = fit_bags(path, tmp_path / "model")
    assert (report.training, report.test) == (60, 20)
    assert report.ours.accuracy >= report.baseline.accuracy >= 0.7
    predicted = predictions(tmp_path / "model", write(bag_frame(seed=1), tmp_path / "new.csv"))
    assert list(predicted.columns) == ["bag", "label", "predicted", "probability_no", "probability_yes"]
    truth = ["yes" if i % 2 else "no" for i in range(80)]
    assert np.mean(predicted["predicted"] == truth) > 0.9


def test_mean_pooling_is_said(tmp_path: Path) -> None:
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((800, 2)), columns=["u", "v"])
    table["bag"] = np.arange(800) // 8
    table["label"] = table["bag"] % 2
    table["u"] += 0.35 * table["label"]  # a little in every instance: the mean sees most of it
    report = fit_bags(write(table, tmp_path / "t.csv"), tmp_path / "model")
    assert report.notes[0] == "attention did not lower the validated loss: bags are pooled by the mean"


def test_it_is_said_that_no_map_was_compared(tmp_path: Path, monkeypatch) -> None:
    path, sentence = write(bag_frame(), tmp_path / "t.csv"), "no other map of the instances was compared"
    assert not any(sentence in note for note in fit_bags(path, tmp_path / "small").notes)
    monkeypatch.setattr("whichtoken.estimators.bags.classifier.LONGEST", 7)
    assert any(sentence in note for note in fit_bags(path, tmp_path / "large").notes)


def test_groups_are_fitted_saved_and_predicted(tmp_path: Path) -> None:
    path = write(group_frame(), tmp_path / "t.csv")
    report = fit_groups(path, tmp_path / "model", GroupRoles("_", covariates=["age"]))
    model = GroupClassifier.load(tmp_path / "model")
    assert report.notes == ("selected 1 of 3 groups: b", str(model.path_))
    assert report.ours.accuracy > 0.9
    predicted = predictions(tmp_path / "model", path)
    assert np.mean(predicted["predicted"] == group_frame()["label"]) > 0.9
    pd.testing.assert_frame_equal(predicted[list(group_frame().columns)].astype(float), group_frame().astype(float))


def test_groups_that_all_matter_are_said_to_be_kept(tmp_path: Path) -> None:
    table = group_frame().drop(columns="age")
    table["label"] = (table[["a_1", "b_2", "c_1"]].sum(axis=1) > 0).astype(int)
    report = fit_groups(write(table, tmp_path / "t.csv"), tmp_path / "model", GroupRoles("_"))
    assert report.notes[0].startswith("selected 3 of 3 groups: ")
    found = GroupClassifier.load(tmp_path / "model").path_
    assert report.notes[1] == str(found)
    assert found.chosen == 3


def test_nonlinear_groups_are_said_only_where_lines_were_tried(tmp_path: Path) -> None:
    table = group_frame()
    table["label"] = (table["b_1"].abs() > 0.7).astype(int)
    path = write(table, tmp_path / "t.csv")
    for asked, said in (("auto", True), ("splines", False)):
        report = fit_groups(path, tmp_path / asked, GroupRoles("_", covariates=["age"]), options={"group_map": asked})
        assert GroupClassifier.load(tmp_path / asked).choice_.group_map == "splines"
        sentence = "groups act nonlinearly here: the map 'splines' predicts better than lines on held-out rows"
        assert (sentence in report.notes) == said


@pytest.mark.parametrize("covariates", [["age"], []])
def test_a_controlled_fit_says_that_nothing_matters(covariates: list[str], tmp_path: Path) -> None:
    table = group_frame() if covariates else group_frame().drop(columns="age")
    table["label"] = np.arange(len(table)) % 2
    path, options = write(table, tmp_path / "t.csv"), {"selection": "controlled", "alpha": 0.01}
    report = fit_groups(path, tmp_path / "model", GroupRoles("_", covariates=covariates), options=options)
    first, chosen, tested, *_ = report.notes
    assert "is not clearly above that of always saying the most frequent class" in first
    assert chosen == "selected none of 3 groups: no group was seen to matter, so the base rate is predicted"
    assert tested.startswith("no group at family-wise error 0.01; smallest adjusted p-value ")
    assert len(predictions(tmp_path / "model", path)) == len(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.drop(columns="bag"), "has no column 'bag'; columns: label, u, v, w"),
        (lambda t: t.drop(columns="label"), "has no column 'label'"),
        (lambda t: t[["bag", "label"]], "has no feature columns besides bag, label"),
        (lambda t: t.assign(u=["x", *t["u"][1:]]), "column 'u' holds 'x' in row 1; features must be finite numbers"),
        (lambda t: t.assign(v=""), "column 'v' is empty in every row; leave it out"),
        (lambda t: t.assign(label=["yes", *t["label"][1:]]), "bag b0 has several labels; a bag must have one"),
        (lambda t: t.assign(label="yes"), "has one class only, 'yes'; a classifier needs at least two"),
        (lambda t: t[t["bag"].isin(["b0", "b1"])], "class 'no' has one row only"),
        (lambda t: t[:0], "has no rows"),
    ],
)
def test_damaged_bag_tables(damage, message: str, tmp_path: Path) -> None:
    path = write(damage(bag_frame()), tmp_path / "t.csv")
    with pytest.raises(UsageError, match=message):
        fit_bags(path, tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_other_damage_to_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    path = write(bag_frame(), tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UsageError, match=r"t\.parquet cannot be read as parquet"):
        fit_bags(path, model)
    table = bag_frame()
    table.assign(bag="é").to_csv(tmp_path / "latin.csv", index=False, encoding="latin-1")
    with pytest.raises(UsageError, match="is not UTF-8"):
        fit_bags(tmp_path / "latin.csv", model)
    with pytest.raises(UsageError, match="does not exist"):
        fit_bags(tmp_path / "absent.csv", model)
    assert not model.exists()


def test_a_folder_of_something_else_is_refused_before_the_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a model folder"):
        fit_bags(write(bag_frame(), tmp_path / "t.csv"), tmp_path)


def test_damaged_group_tables(tmp_path: Path) -> None:
    path = write(group_frame(), tmp_path / "t.csv")
    with pytest.raises(UsageError, match="has no column 'z'"):
        fit_groups(path, tmp_path / "model", GroupRoles({"a": ["a_1"], "b": ["z"]}))
    with pytest.raises(UsageError, match="no column name contains the prefix character ' '"):
        fit_groups(path, tmp_path / "model", GroupRoles(" ", covariates=list(group_frame().columns[:-1])))
    with pytest.raises(UsageError, match=r"test_share=1\.5 must lie between 0 and 1"):
        fit_groups(path, tmp_path / "model", GroupRoles("_"), Scheme(test_share=1.5))
    assert not (tmp_path / "model").exists()


def test_mappings_are_json_objects(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('{"a": ["a_1", "a_2"]}')
    assert read_mapping(tmp_path / "g.json") == {"a": ["a_1", "a_2"]}
    for content in ("[1]", '{"a": 3}', "{"):
        (tmp_path / "g.json").write_text(content)
        with pytest.raises(UsageError, match=r"g\.json"):
            read_mapping(tmp_path / "g.json")


def test_pages_of_tables_are_written_and_offer_rows_only_when_asked(whichtoken, tmp_path: Path) -> None:
    rows = write(group_frame().assign(color=["red", "blue"] * 100), tmp_path / "rows.csv")
    model, page = tmp_path / "model", tmp_path / "page.html"
    fit = ("fit", "groups", rows, "--prefix", "_", "--model", model, "--covariate", "color", "--group-map", "linear")
    assert "explainer: " in whichtoken(*fit, "--explainer", page).stdout
    shown = whichtoken("explain", model, "--file", rows).stdout
    assert re.search(r"adds to [01], by group: (\w+ [+-][\d.]+, )+average row [+-][\d.]+\n", shown)
    cell = str(pd.read_csv(rows)["b_1"][1])
    assert '"levels":["blue","red"]' in page.read_text()
    assert cell not in page.read_text()
    whichtoken("explain", model, "--file", rows, "--explainer", page)
    assert cell in page.read_text()
    bags, page = write(bag_frame(30), tmp_path / "bags.csv"), tmp_path / "bags.html"
    fit = ("fit", "bags", bags, "--model", tmp_path / "bags", "--instance-map", "linear", "--explainer", page)
    assert "--queries is 1 here" in whichtoken(*fit, "--examples", "2").stdout
    assert str(bag_frame(30)["u"][0]) in page.read_text()
    # the automatic number of queries is one where a page is to be exact
    assert '"n_queries": 1' in (tmp_path / "bags" / "model.json").read_text()


def test_pages_that_cannot_be_are_refused_before_the_training(whichtoken, tmp_path: Path) -> None:
    bags, model = write(bag_frame(30), tmp_path / "bags.csv"), tmp_path / "model"
    fit = ("fit", "bags", bags, "--model", model)
    for more, said in {
        ("--explainer", tmp_path / "page.html", "--queries", "2"): "--explainer shows models with one query",
        ("--explainer", bags): "DATA and --explainer name the same file",
        ("--examples", "2"): "give the page as --explainer FILE",
    }.items():
        found = whichtoken(*fit, *more)
        assert found.returncode == 2
        assert said in found.stderr
        assert not model.exists()
    whichtoken(*fit, "--instance-map", "linear")
    found = whichtoken("explain", model, "--explainer", tmp_path / "page.html", "--most-words", "3")
    assert "--most-words is about the words of a page" in found.stderr
    found = whichtoken("explain", model, "a text", "--explainer", tmp_path / "page.html")
    assert "does not read texts" in found.stderr
    assert not (tmp_path / "page.html").exists()
