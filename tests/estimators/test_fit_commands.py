"""`whichtoken fit bags|groups` and `predict`, run as a user would."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd


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
    predicted = whichtoken("predict", "m", "t.csv", "--column", "molecule")
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
