"""`whichtoken fit bags|groups` and `predict`, run as a user would."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


def test_bags_from_file_to_predictions(whichtoken, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((320, 3)), columns=["u", "v", "w"])
    table.insert(0, "molecule", np.arange(320) // 4)
    table["active"] = table["molecule"] % 2
    table.loc[(np.arange(320) % 4 == 0) & (table["active"] == 1), "u"] += (
        9  # far from all noise: the test is about the way, not about the accuracy
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    done = whichtoken(
        "fit", "bags", "t.csv", "--bag", "molecule", "--label", "active", "--model", "m", "--json", "r.json"
    )
    assert done.returncode == 0, done.stderr
    assert "60 for training, 20 for the test" in done.stdout
    assert "mean pooling + logistic regression" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["ours"]["accuracy"] > 0.9
    predicted = whichtoken("predict", "m", "t.csv", "--bag", "molecule")
    found = pd.read_csv(io.StringIO(predicted.stdout))
    assert np.mean(found["predicted"] == np.arange(80) % 2) > 0.9


def test_groups_from_file_to_predictions(whichtoken, tmp_path: Path) -> None:
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((120, 4)), columns=["a.1", "a.2", "b.1", "b.2"])
    table["label"] = np.where(table["b.1"] - table["b.2"] > 0, "yes", "no")
    table.to_csv(tmp_path / "t.csv", index=False)
    done = whichtoken("fit", "groups", "t.csv", "--prefix", ".", "--model", "m")
    assert done.returncode == 0, done.stderr
    assert "selected 1 of 2 groups: b" in done.stdout
    predicted = whichtoken("predict", "m", "t.csv")
    assert np.mean(pd.read_csv(io.StringIO(predicted.stdout))["predicted"] == table["label"]) > 0.9


def clinic(rows: int = 240) -> pd.DataFrame:
    """Visits of patients, with gaps and a column of texts; the groups b and nothing else matter."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((rows, 4)), columns=["a_1", "a_2", "b_1", "c_1"])
    table["b_color"] = rng.choice(["red", "green"], rows)
    table["label"] = np.where(table["b_1"] + 3 * (table["b_color"] == "red") > 1, "ill", "wéll")
    table["patient"] = np.arange(rows) // 3
    table.loc[rng.random(rows) < 0.1, "b_1"] = np.nan
    return table


def test_gaps_texts_encodings_and_all_that_is_said_of_a_fit(whichtoken, tmp_path: Path) -> None:
    table = clinic()
    table.to_csv(tmp_path / "t.csv", index=False, encoding="latin-1")
    form = ("--encoding", "latin-1")
    done = whichtoken(
        "fit", "groups", "t.csv", "--prefix", "_", "--split-by", "patient", "--folds", "3", "--class-weight", "balanced",
        "--baseline", "boosting", "--model", "m", "--json", "r.json", *form,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    gaps = int(table["b_1"].isna().sum())
    for sentence in (
        "240 rows, 3-fold cross-validation with whole groups of 'patient'; the saved model is trained on all of them",
        "gradient boosting on all columns", "most frequent class", "predicted wéll",
        f"column 'b_1' has {gaps} gaps in 240 rows, which are filled with the training median",
        "column 'b_color' holds texts and becomes 2 columns of 0 and 1", "selected 1 of 3 groups: b",
    ):  # fmt: skip
        assert sentence in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    low, high = report["ours"]["intervals"]["accuracy"]
    assert low < report["ours"]["accuracy"] < high
    assert np.sum(report["details"]["confusion"]) == 240

    card = json.loads((tmp_path / "m" / "model-card.json").read_text("utf-8"))
    assert card["data"]["classes"] == table["label"].value_counts().to_dict()
    assert card["evaluation"] == report
    page = (tmp_path / "m" / "model-card.html").read_text("utf-8")
    assert "<svg" in page
    assert "most frequent class" in page

    table[["patient", "b_1", "b_color"]].to_parquet(tmp_path / "new.parquet")  # the columns of the selected group
    asked = whichtoken("predict", "m", "new.parquet", "--to", "out.jsonl", "--abstain-below", "0.9")
    assert asked.returncode == 0, asked.stderr
    found = pd.read_json(tmp_path / "out.jsonl", lines=True)
    assert list(found.columns) == ["patient", "b_1", "b_color", "predicted", "probability_ill", "probability_wéll"]
    sure = found[["probability_ill", "probability_wéll"]].max(axis=1) >= 0.9
    np.testing.assert_array_equal(found["predicted"].notna(), sure)
    assert (found["predicted"] == table["label"])[sure].mean() > 0.95

    judged = whichtoken("evaluate", "m", "t.csv", "--html", "e.html", *form)
    assert judged.returncode == 0, judged.stderr
    assert "the model was trained on rows of this very file, so these scores flatter it" in judged.stdout
    assert "<svg" in (tmp_path / "e.html").read_text("utf-8")


def test_rows_with_gaps_can_be_left_out(whichtoken, tmp_path: Path) -> None:
    table = clinic()
    table.to_csv(tmp_path / "t.csv", index=False)
    kept = int(table["b_1"].notna().sum())
    done = whichtoken("fit", "groups", "t.csv", "--prefix", "_", "--drop-missing", "--no-baseline", "--split-by",
                      "patient", "--model", "m", "--json", "r.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{240 - kept} rows with a gap were left out" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["training"] + report["test"], report["baseline"]) == (kept, None)


def rare_texts(path):
    """Two common classes, one with two texts and one with a single one."""
    rng = np.random.default_rng(0)
    lines = ["text,label"]
    for label, count in (("a", 30), ("b", 24), ("c", 2), ("d", 1)):
        for _ in range(count):
            lines.append(" ".join(f"{label}{k}" for k in rng.integers(0, 9, 6)) + f",{label}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.filterwarnings("always:.*have fewer than 5 documents")
@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--folds", "3"]])
def test_rare_classes_are_learned_and_said_not_to_be_tested(whichtoken, tmp_path, options):
    rare_texts(tmp_path / "rare.csv")
    done = whichtoken("fit", "text", "rare.csv", "--model", "model", "--json", "scores.json", *options)
    assert done.returncode == 0, done.stderr
    assert "leave such classes out with min_class=5, or lower cv" in done.stderr
    assert "class 'd' has too few rows to be tested; it is learned all the same" in done.stdout
    report = json.loads((tmp_path / "scores.json").read_text())
    assert {one["label"]: one["rows"] for one in report["details"]["classes"]}["d"] == 0
    assert report["ours"]["auc"] > 0.9


def test_classes_can_be_left_out(whichtoken, tmp_path):
    rare_texts(tmp_path / "rare.csv")
    done = whichtoken("fit", "text", "rare.csv", "--model", "model", "--min-class", "3", "--json", "scores.json")
    assert done.returncode == 0, done.stderr
    assert "3 rows of 2 classes with fewer than 3 were left out: 'c', 'd'" in done.stdout
    report = json.loads((tmp_path / "scores.json").read_text())
    assert [one["label"] for one in report["details"]["classes"]] == ["a", "b"]
    assert report["training"] + report["test"] == 54
